"""Releases: the names of their files, and the address that has them.

The address stands in one place. `tools/release.py` writes it into a wheel when `LONGCA_RELEASES` gives it, as
the job that makes a release does; at run time the same variable goes before it.
"""

from __future__ import annotations

import os

from longca.core import VERSION, UserError
from longca.core.reading import SHIPPED

VARIABLE = "LONGCA_RELEASES"
ADDRESS_FILE = "RELEASES"  # of what a wheel holds, by setup.py
SUMS = "SHA256SUMS"


def archive_name(version: str, kind: str) -> str:
    """The file of a release that holds all "records", "pages" or "images"."""
    return f"longca-{version}-{kind}.tar.gz"


def release_address(version: str = VERSION) -> str:
    """The address of the files of a release. Raises UserError if none is known."""
    file = SHIPPED / ADDRESS_FILE
    base = os.environ.get(VARIABLE) or (file.read_text(encoding="utf-8").strip() if file.is_file() else "")
    if not base:
        raise UserError(
            f"The address of release {version} is not known",
            why="this longca was not installed from a release",
            todo=(
                f"Give the folder or the address of its files by `--from`, or that of all releases by "
                f"{VARIABLE}"
            ),
        )
    return f"{base.rstrip('/')}/v{version}"
