"""Runs a module with the emulator in Gluon's place, and Triton's own kernels by Triton's interpreter.

python -m tests.ops.gluon MODULE [ARGUMENT...]
"""

import os
import runpy
import sys

from tests.ops.gluon.language import emulate

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    emulate()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
