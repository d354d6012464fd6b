"""A unique identity of the machine of a process."""

import platform
from contextlib import suppress
from pathlib import Path

# shared by containers of one machine, different for each machine
BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The system's boot id; the host name if there is none."""
    with suppress(OSError):
        if boot := BOOT.read_text().strip():
            return boot
    return platform.node()
