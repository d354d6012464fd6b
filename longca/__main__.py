"""`python -m longca` is the command `longca`."""

import os
import sys

import longca

if (
    __name__ == "__main__"
    and not sys.flags.safe_path
    and f"{sys.path[0]}{os.sep}longca" not in longca.__path__
):
    del sys.path[
        0
    ]  # the working folder: a user's `random.py` there must not stand for Python's. The command does not look there either  # noqa: E501

from longca.lab.cli.entry import main

if __name__ == "__main__":
    main()
