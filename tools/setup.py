"""Makes .venv: pinned packages from requirements.lock, and a torch. Standard library only; safe to run again.

torch is taken from the calling Python if it is there and new enough, so that a GPU machine keeps its CUDA build;
else the pinned version is installed (from `TORCH_INDEX` if that is set), with Triton where that build of torch has none.
"""

from __future__ import annotations  # so that an old Python gets as far as being told

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# measured on Linux x86-64 with Python 3.11, files compiled by pip included; other systems differ a little
PACKAGES_SIZE = "about 170 MB to download, 650 MB on disk"
TORCH_SIZE = "the build for CPUs: 190 MB to download, 850 MB on disk; one with CUDA: some GB. TORCH_INDEX chooses"
TRITON_SIZE = "about 188 MB to download, 670 MB on disk"
STAMP = VENV / "longca-setup"
LOCK = ROOT / "requirements.lock"
RECORDED_LOCK = VENV / "longca-lock"  # its digest, which records name
OLDEST_TORCH = (2, 11)
PINNED_TORCH = "torch==2.13.0"
PINNED_TRITON = "triton==3.6.0"  # for tests, which run and compile kernels without a GPU; builds of torch for CPUs bring none


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"Python {sys.version.split()[0]} is too old: longca needs 3.11 or newer. Run `make PYTHON=python3.12 …`")
    if Path(sys.prefix).resolve() == VENV.resolve():  # .venv is first on PATH: go on with the Python that it was made from
        os.execv(sys._base_executable, [sys._base_executable, *sys.argv])
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in (LOCK, ROOT / "pyproject.toml", Path(__file__)))).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    start = time.monotonic()
    torch_site = find_torch()
    say(f"Making .venv with Python {sys.version.split()[0]}; takes minutes, once")
    try:
        venv.EnvBuilder(with_pip=True, clear=False, symlinks=True).create(VENV)
    except subprocess.CalledProcessError:
        sys.exit("This Python cannot make a virtual environment with pip. On Debian and Ubuntu: apt-get install python3-venv")
    site = next((VENV / "lib").glob("python3.*")) / "site-packages"
    if torch_site is not None:
        say(f"Using the torch of {sys.executable}")
        (site / "torch_of_the_machine.pth").write_text(f"{torch_site}\n")  # comes after .venv's own packages
    install(f"{num_locked()} pinned packages", PACKAGES_SIZE, "--require-hashes", "-r", str(LOCK))
    if torch_site is None and not torch_in(str(PYTHON)):
        index = os.environ.get("TORCH_INDEX")
        install(PINNED_TORCH, TORCH_SIZE, PINNED_TORCH, *(["--index-url", index] if index else []))
    if torch_site is None and platform.system() == "Linux" and platform.machine() == "x86_64" and not has_triton():
        install(PINNED_TRITON, TRITON_SIZE, "--no-deps", PINNED_TRITON)
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    RECORDED_LOCK.write_text(f"sha256:{hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n")
    STAMP.write_text(wanted)
    say(f"Done in {duration(time.monotonic() - start)}: .venv takes {megabytes()} MB")


def num_locked() -> int:
    """Packages of the lock, but those of other systems than this one's kind; some belong to other versions of Python."""
    names = re.findall(r"^([A-Za-z0-9._-]+)==(?!.*sys_platform == '(?:win32|emscripten)')", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return len(set(names))


def install(what: str, size: str, *arguments: str) -> None:
    """Says what is installed and how large it is before, and what it has come to after."""
    say(f"Installing {what} ({size})")
    start, before = time.monotonic(), megabytes()
    pip("install", *arguments)
    say(f"  {megabytes() - before} MB on disk, in {duration(time.monotonic() - start)}")


def megabytes() -> int:
    """That .venv takes on disk."""
    return round(sum(path.lstat().st_size for path in VENV.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def find_torch() -> str | None:
    """The site-packages folder of the calling Python's torch, if that is new enough and can be imported."""
    return torch_in(sys.executable)


def torch_in(python: str) -> str | None:
    code = "import pathlib, torch; print(torch.__version__); print(pathlib.Path(torch.__file__).parent.parent)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        return None
    version, site = done.stdout.splitlines()[-2:]
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return site if found >= OLDEST_TORCH else None


def has_triton() -> bool:
    return subprocess.run([str(PYTHON), "-c", "import triton"], capture_output=True, cwd="/", check=False).returncode == 0


def pip(*arguments: str) -> None:
    command = ["pip", "--disable-pip-version-check", "-q", *arguments]
    if subprocess.run([str(PYTHON), "-W", "ignore", "-m", *command], check=False).returncode:  # an old pip warns of old packages
        sys.exit(f"Setting up failed in: {' '.join(command)}. Mend what pip says above and run make again")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    main()
