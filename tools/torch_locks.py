"""Writes torch.lock and torch-cpu.lock: torch and all that it brings, each file with its SHA-256. Needs uv
and the package indexes.

`torch.lock` is PyPI's build: on Linux the one with CUDA, on macOS the only one. `torch-cpu.lock` is the build
for CPUs from PyTorch's own index, with a Triton for the tests that run kernels in its interpreter. Where that
index cannot be reached, the hashes of the CPU build stay as they are, unless its version has changed.
"""

import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

from tools.pages import ROOT

TORCH = "2.13.0"
TRITON = "3.6.0"  # builds of torch for CPUs bring none
CPU_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
WHEEL = re.compile(
    rf"torch-{re.escape(TORCH)}\+cpu-(cp\d+)-\1-manylinux\w+_(?:x86_64|aarch64)\.whl#sha256=([0-9a-f]{{64}})"
)
OLDEST = 11  # minor version of Python
COMMON = ROOT / "requirements.lock"  # packages of both are of one version
FULL = ROOT / "torch.lock"
CPU = ROOT / "torch-cpu.lock"
NOT_OF_CPU = re.compile(r"(?:torch|triton|nvidia-|cuda-)")


def main() -> None:
    full = _resolved(f"torch=={TORCH}")
    FULL.write_text(full, encoding="utf-8")
    hashes = _cpu_hashes()
    torch = (
        " \\\n".join([f"torch=={TORCH}+cpu", *(f"    --hash=sha256:{digest}" for digest in hashes)]) + "\n"
    )
    triton = _resolved(f"triton=={TRITON} ; sys_platform == 'linux' and platform_machine == 'x86_64'")
    shared = [entry for entry in _entries(full) if not NOT_OF_CPU.match(entry)]
    CPU.write_text("".join(sorted([*shared, torch, triton])), encoding="utf-8")


def _resolved(requirement: str) -> str:
    """The requirement and all that it brings, for every platform, with hashes."""
    command = [
        "uv",
        "pip",
        "compile",
        "-",
        "-c",
        str(COMMON),
        "--universal",
        "--python-version",
        f"3.{OLDEST}",
        "--generate-hashes",
        "--no-emit-index-url",
        "--no-annotate",
        "--no-header",
        "-q",
    ]
    return subprocess.run(command, input=requirement, stdout=subprocess.PIPE, text=True, check=True).stdout


def _entries(lock: str) -> list[str]:
    """The lock's requirements, each with its hashes."""
    return re.findall(r"^\S.*\n(?:\s+--hash.*\n)*", lock, re.MULTILINE)


def _cpu_hashes() -> list[str]:
    """The hashes of the builds for CPython on Linux, as the index names them; else those of the present
    lock."""
    try:
        with urllib.request.urlopen(CPU_INDEX, timeout=30) as answer:
            page = urllib.parse.unquote(answer.read().decode("utf-8"))
    except OSError as error:
        present = next(
            (
                entry
                for entry in _entries(CPU.read_text(encoding="utf-8"))
                if entry.startswith(f"torch=={TORCH}+cpu ")
            ),
            None,
        )
        if present is None:
            sys.exit(
                f"torch-cpu.lock: {CPU_INDEX} cannot be reached ({error}), and the lock is of another version"
            )
        print(f"torch-cpu.lock: {CPU_INDEX} cannot be reached, its hashes stay as they were", file=sys.stderr)
        return re.findall(r"sha256:([0-9a-f]{64})", present)
    return sorted({digest for tag, digest in WHEEL.findall(page) if int(tag[3:]) >= OLDEST})


if __name__ == "__main__":
    main()
