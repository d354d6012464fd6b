"""Processes that this one starts: they end with it, and with everything that they have started, wherever that has gone.

A process that leaves its group (`setsid`, a double fork) is still known by a mark in its environment, which it inherits.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "LONGCA_STARTED_AS"
PROCESSES = Path("/proc")
ROUNDS = 5  # of looking for marked processes: one may fork while it is looked for
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies, in whatever way.

    Only Linux has such a call. On other systems this does nothing, unless the parent is gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)


def marked(mark: str) -> list[int]:
    """Process ids of this user's living processes that have the mark in their environment; none where there is no /proc."""
    with suppress(OSError):
        numbers = [int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdecimal()]
        return [pid for pid in numbers if _has_mark(pid, mark)]
    return []


def kill_all(leader: int, mark: str) -> None:
    """Kill the process group of `leader`, and all processes with the mark. Returns at once; what is gone already is no error.

    Args:
        leader: a child of this process that has not been waited for, or has no group any more.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(ROUNDS):
        if sum(_kill(pid, mark) for pid in marked(mark)) == 0:
            return


def _kill(pid: int, mark: str) -> bool:
    """Kill the process of this number, if it still has the mark: another one may have got the number. True if it did."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _has_mark(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def _has_mark(pid: int, mark: str) -> bool:
    """False, too, for a process that has ended: the system then shows no environment of it."""
    try:
        return f"{MARK}={mark}".encode() in (PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it is gone, or somebody else's
        return False
