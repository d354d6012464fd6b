"""Kernels in Triton's interpreter, on a CPU, against the definition. The switch is global, so they get a process of their own.

    TRITON_INTERPRET=1 python -m tests.ops.interpreted few|whole PART...

Every part is tried, whatever becomes of those before it, and each that is right is named.
"""

import sys
import traceback

import numpy as np
from triton.runtime import interpreter

from tests.kernels import flashmask_interpreted
from tests.ops import band_interpreted, parts_interpreted

PARTS = {part.__name__: part for module in (band_interpreted, parts_interpreted, flashmask_interpreted) for part in module.PARTS}


def let_loops_run() -> None:
    """Triton 3.6 makes a loop's bound an int in a way that NumPy 2.4 no longer allows."""
    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def main(cases: str, *parts: str) -> int:
    let_loops_run()
    np.seterr(all="ignore")  # the interpreter computes −inf − −inf where a kernel then selects
    wrong = 0
    for part in parts:
        try:
            PARTS[part](cases == "whole")
            print(f"right: {part}", flush=True)
        except Exception:
            traceback.print_exc()
            wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
