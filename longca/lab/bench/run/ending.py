"""The ends of a run before all is measured: a signal, or the end of the workflow that started it.

A run whose workflow is gone ends itself: the next workflow would wait for it, and nobody reads its end. A run
that a user has started belongs to no workflow. It goes on after its terminal is closed, where it was told to
(`nohup`).
"""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from longca.core import boot_id
from longca.lab.bench.workers.process import ending_signals

VARIABLE = "LONGCA_WORKFLOW"
WAIT_SECONDS = 600.0  # that a user's run waits for another one
NAMESPACE = Path("/proc/self/ns/pid")


class Stop:
    """Reasons to end a run before all is measured. None is an exception, so that nothing is interrupted half
    done."""

    def __init__(self) -> None:
        self.signal = threading.Event()

    def now(self) -> bool:
        """True after a signal: the cell in flight ends, too."""
        return self.signal.is_set()

    def soon(self) -> bool:
        """True if no further cell should be begun, and nothing be waited for."""
        return self.now() or workflow_is_gone()


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Takes notice of the signals that end a run."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's
        return
    numbers = ending_signals()
    before = [signal.signal(number, lambda *_: stop.signal.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def this_process() -> str:
    """The text that a workflow puts into the variable for all that it starts: machine, process id, and start
    of the process."""
    return " ".join((_place(), str(os.getpid()), _started(os.getpid()) or ""))


def by_workflow(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a workflow has started this process."""
    return bool(environ.get(VARIABLE))


def usual_wait_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How long a run waits for another one on its device, in seconds. None: without limit, for jobs of a
    workflow and of Slurm, which have a limit of their own."""
    return None if by_workflow(environ) or environ.get("SLURM_JOB_ID") else WAIT_SECONDS


def workflow_is_gone(environ: Mapping[str, str] = os.environ) -> bool:
    """True if a workflow on this machine has started this process, and has ended. Of another machine's
    workflow nothing is known."""
    machine, _, process = environ.get(VARIABLE, "").partition(" ")
    pid, _, started = process.partition(" ")
    return machine == _place() and pid.isdigit() and _started(int(pid)) != started


def _place() -> str:
    """Names the machine, and the numbering of processes on it: containers have their own."""
    boot = boot_id()
    with suppress(OSError):
        return f"{boot}/{NAMESPACE.stat().st_ino}"
    return boot


def _started(pid: int) -> str | None:
    """The start of a process, in ticks since the machine's start; empty where the system does not say. None
    if it has ended."""
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
