"""Triton's assembler, called as Triton calls it."""

from __future__ import annotations

import inspect
import os
import re

from triton import knobs
from triton.backends.nvidia import compiler
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability


def assembler_command(capability: int, path: str) -> list[str]:
    """A call of Triton's assembler, with the level of register allocation that this Triton asks for. Writes
    no file.

    Args:
        capability: 90 for sm_90.
        path: of the PTX.
    """
    level = re.findall(r"--regAllocOptLevel=\d", inspect.getsource(compiler))[:1]  # since Triton 3.7
    options = (knobs.nvidia.ptxas_options or "").split()
    target = f"-arch={sm_arch_from_capability(capability)}"
    return [get_ptxas(capability).path, target, "-v", *level, *options, path, "-o", os.devnull]
