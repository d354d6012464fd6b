"""A worker process: started, watched, and ended with all that it has started, on the machine where it runs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from longca.bench.measure.environment import num_cores

TAIL_CHARS = 4000
DEATH_SECONDS = 10.0  # from the end of its connection to its own: a driver may still be freeing what it had
STACK_SIGNAL = signal.SIGUSR1
# OpenMP's threads sleep while they wait. By default they spin for milliseconds after each operation: short cells took several times the
# CPU time, and where other processes want the cores a spinning thread keeps away the one that it waits for
WAIT_POLICY = "OMP_WAIT_POLICY"
FRAME = re.compile(r'File "(.*?([^/"]+))", line (\d+) in (\S+)')  # of a stack as faulthandler prints it


class WorkerProcess:
    """`python -m longca.bench.workers.worker`, and the file that takes what it prints.

    It dies with the thread that started it, and its own children with it.
    """

    def __init__(self, options: Mapping[str, object], num_threads: int, log: Path, descriptors: Sequence[int],
                 env: Mapping[str, str] | None = None) -> None:
        """
        Args:
            options: the worker's, by their Python names.
            num_threads: CPU threads that its libraries may use.
            log: file that takes all it prints.
            descriptors: open files that it inherits.
            env: variables for it beside those of this process.

        Raises:
            OSError: the log cannot be written, or the process not started.
        """
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._mark = self._stack_mark = 0
        options = {**options, "threads": num_threads, "parent": os.getpid()}
        command = [sys.executable, "-u", "-m", "longca.bench.workers.worker"]
        command += [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            pass_fds=tuple(descriptors), start_new_session=True,
                                            env={WAIT_POLICY: "passive", **os.environ, "OMP_NUM_THREADS": str(num_threads),
                                                 **(env or {})})

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def begin(self, title: str) -> None:
        """Head the part of the log that `tail` will show. A disk too full for it is the store's to report."""
        with suppress(OSError), self.log.open("ab") as output:
            output.write(f"== {title}\n".encode())
            self._mark = output.tell()

    def tail(self) -> str:
        """The end of what it has printed since `begin`."""
        return self._printed_since(self._mark)[-TAIL_CHARS:].strip()

    def ask_for_stack(self) -> None:
        """Have it print where it is, which works while it waits inside a library."""
        self._stack_mark = self.log.stat().st_size
        if self.is_alive:
            self.process.send_signal(STACK_SIGNAL)

    def whereabouts(self) -> str:
        """File and line of what it was doing when it was asked; empty where it did not say."""
        frames = FRAME.findall(self._printed_since(self._stack_mark))
        own = [frame for frame in frames if "/torch/" not in frame[0]]
        return "{1}:{2} in {3}".format(*(own or frames)[0]) if frames else ""

    def cause_of_death(self) -> str:
        """How the process ended; waits a little for its end, which must be near."""
        self.wait(DEATH_SECONDS)
        code = self.process.poll()
        if code is None:
            return "it has closed its connection and does not end"
        if code >= 0:
            return f"it exited with code {code}"
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-code, f"signal {-code}")  # of the real-time signals, Python names two
        hint = ", which is also how the system frees memory when it runs out" if name == "SIGKILL" else ""
        return f"it was killed by {name}{hint}"

    def wait(self, timeout_s: float) -> None:
        """For its end, so long."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(timeout_s, 0.0))

    def kill(self) -> None:
        """It and all processes that it has started; returns at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _printed_since(self, mark: int) -> str:
        with self.log.open("rb") as output:
            output.seek(mark)
            return output.read().decode(errors="replace")


def threads_per_rank(num_ranks: int) -> int:
    """CPU threads of each of so many ranks of this machine; OMP_NUM_THREADS is heeded."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, num_cores() // num_ranks)
