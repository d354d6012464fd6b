"""Child processes that end together with this process and with all their descendants.

A process that leaves its group (`setsid`, a double fork) is still identified by an inherited variable in its
environment, the mark.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "LONGCA_STARTED_AS"
PROCESSES = Path("/proc")
ROUNDS = 5  # searches for marked processes, since one may fork during the search
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies for any reason.

    Only Linux has such a call. On other systems this does nothing, unless the parent has already ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above
        sys.exit(1)


def marked(mark: str) -> list[int]:
    """Process ids of this user's running processes with the mark in their environment; none without /proc."""
    with suppress(OSError):
        numbers = [int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdecimal()]
        return [pid for pid in numbers if _has_mark(pid, mark)]
    return []


def kill_all(leader: int, mark: str) -> None:
    """Kill the process group of `leader`, and all processes with the mark. Returns at once; processes that
    have already ended are ignored.

    Args:
        leader: a child of this process that was not waited for, or whose group no longer exists.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(ROUNDS):
        if sum(_kill(pid, mark) for pid in marked(mark)) == 0:
            return


def _kill(pid: int, mark: str) -> bool:
    """Kill the process with this id if it still has the mark, since ids are reused. Returns True if it
    did."""
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
    """Also False for an ended process, whose environment the system no longer shows."""
    try:
        return f"{MARK}={mark}".encode() in (PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
