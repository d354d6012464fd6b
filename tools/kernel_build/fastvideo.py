"""fastvideo-kernel's wheel brings a driver library of its build machine. The machine's own has to be taken:
another one does not start."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .compiler import BuildError, Compiler

DRIVER = "libcuda"


def build(sources: Path, work: Path, site: Path, compiler: Compiler, archs: tuple[str, ...]) -> Path:
    """Let the installed package's extensions ask for `libcuda.so.1`, and remove the wheel's own. Returns the
    folder of its libraries."""
    if (patchelf := shutil.which("patchelf")) is None:
        raise BuildError("There is no patchelf: install it")
    libraries = site / "fastvideo_kernel.libs"
    for own in sorted(libraries.glob(f"{DRIVER}-*")):
        for extension in [
            *sorted((site / "fastvideo_kernel").rglob("*.so")),
            *sorted(site.glob("fp4*_cuda*.so")),
        ]:
            subprocess.run(
                [patchelf, "--replace-needed", own.name, f"{DRIVER}.so.1", str(extension)], check=True
            )
        own.unlink()
    return libraries
