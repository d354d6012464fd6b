"""The machine that a process runs on, told apart from all others."""

import platform
from contextlib import suppress
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")  # containers of one machine share it, two machines never do


def boot_id() -> str:
    """The number that the system drew when the machine was started; the machine's name where the system tells none."""
    with suppress(OSError):
        if boot := BOOT.read_text().strip():
            return boot
    return platform.node()
