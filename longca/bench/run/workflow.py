"""The workflow that started a run. A run ends itself when it is gone: the next workflow would measure beside it, and nobody reads its end.

A run that a user starts has none, and goes on after its terminal is closed, where it was told to (`nohup`).
"""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "LONGCA_WORKFLOW"
BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")


def this_process() -> str:
    """What a workflow puts into the variable for all that it starts: machine, process id, and when the process was started."""
    return " ".join((_place(), str(os.getpid()), _started(os.getpid()) or ""))


def by_workflow(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a workflow has started this process."""
    return bool(environ.get(VARIABLE))


def workflow_is_gone(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a workflow on this machine has started this process, and has ended. Of another machine's workflow nothing is known."""
    place, _, process = environ.get(VARIABLE, "").partition(" ")
    pid, _, started = process.partition(" ")
    return place == _place() and pid.isdigit() and _started(int(pid)) != started


def _place() -> str:
    """Names the machine, and the numbering of processes on it: containers have their own."""
    boot = BOOT.read_text().strip() if BOOT.exists() else platform.node()
    with suppress(OSError):
        return f"{boot}/{os.stat(NAMESPACE).st_ino}"
    return boot


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since the machine's start; empty where the system does not say. None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if state in "ZX" else fields[18]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:  # it has ended while its file was read
        return None
    import psutil

    return "" if psutil.pid_exists(pid) else None
