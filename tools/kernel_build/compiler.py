"""nvcc and g++ behind one face: units are compiled side by side, each once for its content and flags, and
linked to an extension.

Where ccache is on PATH it keeps every object by the hash of its preprocessed source, its flags and its
compiler. So a build that was stopped goes on where it was, and a second build takes minutes. Objects of one
unit are the same bytes each time: nvcc names its temporary files after the object, not after its process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

GB_OF_A_COMPILER = 7  # the most that was seen of one unit
MEMORY = Path("/proc/meminfo")
TORCH_LIBRARIES = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")


class BuildError(Exception):
    """One line: what is missing, or which unit did not compile, followed by what the compiler said."""


@dataclass(frozen=True)
class Unit:
    """A translation unit of an extension."""

    folder: Path
    """the compiler works here, so that flags and messages hold no path of this machine"""
    source: str
    """relative to the folder"""
    flags: tuple[str, ...]

    @property
    def is_cuda(self) -> bool:
        return self.source.endswith(".cu")


@dataclass(frozen=True)
class Compiler:
    """The compilers of this Python's torch."""

    cuda: Path
    """the folder of the CUDA toolkit"""
    torch: Path
    """the folder of torch"""
    jobs: int
    """compilers that run at a time"""

    @classmethod
    def here(cls, jobs: int | None = None) -> Compiler:
        """The compilers of this machine. Raises BuildError without nvcc or torch."""
        try:
            import torch
        except ImportError as error:
            raise BuildError("There is no torch in this Python: its headers are needed") from error
        root = Path(torch.__file__).parent
        cuda = _toolkit(root.parent)
        return cls(cuda, root, jobs or int(os.environ.get("MAX_JOBS", 0)) or _jobs_that_fit())

    @property
    def cache(self) -> list[str]:
        """The command that goes before a compiler's, if ccache is here."""
        return [program] if (program := shutil.which("ccache")) else []

    @property
    def suffix(self) -> str:
        """The end of an extension's name, for this Python."""
        return str(sysconfig.get_config_var("EXT_SUFFIX"))

    @property
    def runtime(self) -> Path:
        """The library of CUDA's runtime. Raises BuildError."""
        libraries = sorted(
            path for name in ("lib", "lib64") for path in (self.cuda / name).glob("libcudart.so*")
        )
        if not libraries:
            raise BuildError(
                f"There is no libcudart below {self.cuda}: install nvidia-cuda-runtime of torch's CUDA "
                f"version"
            )
        return libraries[0]

    def objects(self, units: Sequence[Unit], into: Path) -> list[Path]:
        """Compile the units, the first ones first, and give their objects in that order. Raises
        BuildError."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda unit: self._object(unit, into), units))

    def link(self, objects: Iterable[Path], library: Path) -> None:
        """Link the objects against torch and the CUDA runtime that torch brings. Raises BuildError."""
        library.parent.mkdir(parents=True, exist_ok=True)
        # a torch without CUDA lacks two
        here = [name for name in TORCH_LIBRARIES if (self.torch / f"lib/lib{name}.so").exists()]
        libraries = [f"-L{self.torch / 'lib'}", *(f"-l{name}" for name in here), str(self.runtime)]
        command = [
            "g++",
            "-shared",
            "-Wl,--build-id=none",
            *map(str, objects),
            *libraries,
            "-o",
            str(library),
        ]
        run(command, library.parent, library.name)

    def _object(self, unit: Unit, into: Path) -> Path:
        # of its own: names of temporary files do not collide there
        folder = into / unit.source.replace("/", "_")
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / "unit.o"
        headers = (
            self.torch / "include",
            self.torch / "include/torch/csrc/api/include",
            Path(sysconfig.get_paths()["include"]),
            self.cuda / "include",
            self.cuda / "include/cccl",
        )
        compiler = (
            [str(self.cuda / "bin/nvcc"), "--objdir-as-tempdir", "-Xcompiler=-fPIC"]
            if unit.is_cuda
            else ["g++", "-fPIC"]
        )
        command = [
            *self.cache,
            *compiler,
            *unit.flags,
            *(f"-I{path}" for path in headers),
            "-c",
            unit.source,
            "-o",
            str(target),
        ]
        run(command, unit.folder, unit.source)
        return target


def _toolkit(site: Path) -> Path:
    """The toolkit of PyPI's packages beside torch, or the machine's own."""
    for folder in (site / "nvidia/cu13", Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))):
        if (folder / "bin/nvcc").exists():
            return folder
    if (program := shutil.which("nvcc")) is not None:
        return Path(program).resolve().parent.parent
    raise BuildError("There is no nvcc: install nvidia-cuda-nvcc of torch's CUDA version, or set CUDA_HOME")


def _jobs_that_fit() -> int:
    return max(1, min(os.cpu_count() or 1, available_bytes(MEMORY) // 10**9 // GB_OF_A_COMPILER))


def available_bytes(facts: Path) -> int:
    """Memory that programs can have; files that the system keeps in memory give way, and are not counted.

    Args:
        facts: `/proc/meminfo`, or a file like it.
    """
    lines = (line.split() for line in facts.read_text(encoding="ascii").splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")


def run(command: list[str], folder: Path, what: str) -> None:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{what} did not compile: {' '.join(command)}\n{done.stdout}{done.stderr}")
    print(f"{what}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
