"""Accidents need a small disk and a clock that jumps. They are left out where the machine has none."""

import os
import shutil
import subprocess
from pathlib import Path

CLOCK = Path(__file__).with_name("clock.c")


def skipped() -> dict[str, str]:
    """Accident → why it cannot happen here."""
    texts = {}
    if os.geteuid() != 0 or not shutil.which("mount"):
        texts["full disk"] = "only root may mount a small disk"
    if not shutil.which("cc"):
        texts["clock"] = "there is no C compiler"
    return texts


def shifted_clock(folder: Path, shift: Path) -> dict[str, str]:
    """Variables for the environment of processes whose wall clock is shifted by as many seconds as the file
    `shift` says.

    Args:
        folder: for the library that does it.
    """
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK)], check=True)
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(shift)}


def mount_small(folder: Path, size: str) -> None:
    """Mount a disk of this size in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
