"""Compiles the kernels that PyPI has as sources for this Python and its torch: FlashAttention 1, 2 and 3, and
FlashInfer's modules.

    python -m tools.kernel_build SOURCES --lock containers/hopper-cu130/sources.lock [--only fa2,fa3] [--archs
    80,90]

SOURCES holds the source packages that the lock names; each is checked by its hash. Extensions and their
Python files are put beside this Python's packages. It needs nvcc (of PyPI's nvidia-cuda-nvcc, or the
machine's), a C++ compiler, this Python's torch, and no network. With ccache on PATH it goes on where it was
stopped. If something is missing it ends with one line and exit code 2.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from . import fa1, fa2, fa3, fastvideo, flashinfer_modules
from .compiler import BuildError, Compiler

Build = Callable[[Path, Path, Path, Compiler, tuple[str, ...]], Path | None]
# which source package, and where in it; none: it is installed already
PACKAGES: dict[str, tuple[Build, str, str]] = {
    "fa3": (fa3.build, "xformers-", "third_party/flash-attention/hopper"),
    "fa2": (fa2.build, "flash_attn-2", "."),
    "fa1": (fa1.build, "flash_attn-1", "."),
    "flashinfer": (flashinfer_modules.build, "", ""),
    "fastvideo": (fastvideo.build, "", ""),
}
ARCHS = ("80", "90")
WORK = Path("/opt/build")  # the same on every machine, and so in messages and objects


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="kernel_build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    here = Path(sysconfig.get_path("platlib"))
    parser.add_argument("--into", type=Path, default=here, help="a folder of Python packages [this Python's]")
    lock = Path(__file__).parent.parent / "sources.lock"  # where the image has it
    parser.add_argument("--lock", type=Path, default=lock, help="SHA-256 and URL of each source package")
    parser.add_argument("--only", default=",".join(PACKAGES), help="which of them")
    parser.add_argument("--archs", default=",".join(ARCHS), help="compute capabilities without the dot")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="where sources and objects go; emptied before and after"
    )
    options = parser.parse_args()
    try:
        wanted = _chosen(options.only, tuple(PACKAGES))
        archs = _chosen(options.archs, ARCHS)
        compiler = Compiler.here()
        for name in wanted:
            build, package, folder = PACKAGES[name]
            start = time.perf_counter()
            shutil.rmtree(options.work, ignore_errors=True)
            unpacked = (
                _unpacked(options.sources, options.lock, package, options.work / "src")
                if package
                else options.work
            )
            library = build(
                unpacked / folder, options.work / "objects", options.into.resolve(), compiler, archs
            )
            print(
                f"{name}: {library or 'nothing for these GPUs'} after {time.perf_counter() - start:.0f} s",
                flush=True,
            )
        shutil.rmtree(options.work, ignore_errors=True)
    except (BuildError, OSError) as error:
        print(f"kernel_build: {error}", file=sys.stderr)
        sys.exit(2)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in known]:
        raise BuildError(f"'{unknown[0]}' is not one of {', '.join(known)}")
    return names


def _unpacked(sources: Path, lock: Path, package: str, into: Path) -> Path:
    """The folder of a source package that has the hash of its lock."""
    lines = [line.split() for line in lock.read_text(encoding="utf-8").splitlines()]
    digest, name = next(
        (digest, url.rpartition("/")[2])
        for digest, url in lines
        if url.rpartition("/")[2].startswith(package)
    )
    file = sources / name
    if not file.is_file():
        raise BuildError(f"'{file}' is missing: `longca image fetch` gets it")
    with file.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if actual != digest:
        raise BuildError(
            f"'{file}' is not what the lock says: its SHA-256 is {actual}, the lock has {digest}"
        )
    shutil.unpack_archive(file, into)  # known by its hash; Debian's Python has no filter for tarfile
    return into / name.removesuffix(".tar.gz")


if __name__ == "__main__":
    main()
