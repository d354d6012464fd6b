"""A worker process on this machine: it is started, watched, and ended together with all processes that it has
started."""

import faulthandler
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from longca.core.children import start
from longca.core.children.output import Output
from longca.core.children.processes import MARK, die_with, kill_all
from longca.core.children.template import Template
from longca.core.children.trial import NONE as NO_TRIALS
from longca.core.children.trial import VARIABLE as TRIALS
from longca.lab.bench.measure.environment import NVIDIA_DRIVER, num_cores
from longca.lab.bench.measure.failure import place_in_stack

TAIL_CHARS = 4000
# between the end of its connection and its own end: a driver may still be freeing memory
DEATH_SECONDS = 10.0
STACK_SIGNAL = signal.SIGUSR1
# OpenMP's threads sleep while they wait. By default they spin for milliseconds after each operation: short
# cells took several times the
# CPU time, and where other processes want the cores a spinning thread keeps away the one that it waits for
WAIT_POLICY = "OMP_WAIT_POLICY"
# what a template imports for its children, and variables that these may have otherwise: each sets the number
# of threads of torch, and gloo asks for its interface when it connects
IMPORTED = ("longca.lab.bench.workers.session", "longca.lab.bench.judge.court")
LATE_VARIABLES = frozenset({"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"})


def ending_signals() -> tuple[signal.Signals, ...]:
    """Signals that end a run in good order. One that this process was started to ignore, as `nohup` does with
    SIGHUP, stays ignored."""
    others = (signal.SIGHUP, signal.SIGQUIT)  # the terminal is gone; Ctrl-\\
    return (
        signal.SIGINT,
        signal.SIGTERM,
        *(number for number in others if signal.getsignal(number) != signal.SIG_IGN),
    )


def obey_parent(parent: int) -> None:
    """Have this process, a `WorkerProcess` of that parent, end with it, and leave to it all else that ends a
    run."""
    die_with(parent)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=False)
    for number in ending_signals():
        signal.signal(
            number, signal.SIG_IGN
        )  # a cluster sends them to every process of a job; the runner reacts for all


def worker_environment(num_threads: int) -> dict[str, str]:
    """The environment of a worker whose libraries may use so many CPU threads, without its mark."""
    return {
        WAIT_POLICY: "passive",
        **start.environment(os.environ),
        "OMP_NUM_THREADS": str(num_threads),
        TRIALS: NO_TRIALS,
    }


def new_template(log: Path, stopped: Callable[[], bool]) -> Template | None:
    """The process that forks workers and judges for CPUs; None where there can be none."""
    # an import might start a GPU's driver, which no fork survives
    if sys.platform != "linux" or NVIDIA_DRIVER.exists():
        return None
    return Template(IMPORTED, worker_environment(1), log, stopped)


class WorkerProcess:
    """The module `longca.lab.bench.workers.worker` in a process, and the file for its output.

    It dies with the thread that started it, and its own children with it.
    """

    module = "-m", "longca.lab.bench.workers.worker"

    def __init__(
        self,
        options: Mapping[str, object],
        num_threads: int,
        log: Path,
        descriptors: Sequence[int],
        env: Mapping[str, str] | None = None,
        template: Template | None = None,
    ) -> None:
        """
        Args:
            options: options of the worker, by their Python names.
            num_threads: CPU threads that its libraries may use.
            log: file for all its output.
            descriptors: open files that it inherits.
            env: environment variables in addition to those of this process.
            template: forks the process, where it can.

        Raises:
            OSError: the log cannot be written, or the process not started.
        """
        self.log = log
        self._output = Output(log)
        self._mark = secrets.token_hex(8)
        options = {**options, "threads": num_threads, "parent": os.getpid()}
        words = [
            part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        environ = {**worker_environment(num_threads), **(env or {}), MARK: self._mark}
        try:
            forked = template and template.fork(
                [*self.module[1:], *words], environ, LATE_VARIABLES, self._output.writer, descriptors
            )
            self.process = forked or subprocess.Popen(
                [*start.python("-u"), *self.module, *words],
                stdin=subprocess.DEVNULL,
                stdout=self._output.writer,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(descriptors),
                start_new_session=True,
                env=environ,
            )
        except BaseException:
            self._output.close()
            raise
        finally:
            os.close(self._output.writer)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def begin(self, title: str) -> None:
        """Write a headline into the log; `tail` shows what follows it. Errors are ignored: if the disk is
        full, the store reports it."""
        self._output.begin(title)

    def tail(self) -> str:
        """The last output since `begin`."""
        return self._output.tail()[-TAIL_CHARS:].strip()

    def ask_for_stack(self) -> None:
        """Have it print its stack; this works even while it waits inside a library."""
        if self.is_alive:
            self.process.send_signal(STACK_SIGNAL)

    def whereabouts(self) -> str:
        """File, line and function in the stack that it printed last since `begin`: when asked, or as it died.
        Empty if it printed none."""
        return place_in_stack(self._output.tail())

    def cause_of_death(self) -> str:
        """The exit code or signal of the process, in words. Waits up to DEATH_SECONDS for its end."""
        self.wait(DEATH_SECONDS)
        code = self.process.poll()
        if code is None:
            return "it has closed its connection and does not end"
        if code >= 0:
            return f"it exited with code {code}"
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-code, f"signal {-code}")  # Python has names for two of the real-time signals only
        hint = ", which is also how the system frees memory when it runs out" if name == "SIGKILL" else ""
        return f"it was killed by {name}{hint}"

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, up to `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(timeout_s, 0.0))

    def kill(self) -> None:
        """Kill it and all processes that it has started, in whatever group they are. Returns at once."""
        kill_all(self.process.pid, self._mark)

    def close_log(self) -> None:
        """Write the last of its output; it has ended."""
        self._output.close()


def network(address: str) -> dict[str, str]:
    """A variable for a worker's environment that makes gloo use one network interface alone.

    By default gloo takes the address that the host name resolves to. On some systems other machines cannot
    reach that address; and where all ranks are on one machine, nobody else should. Where a site has chosen an
    interface, that one stays.

    Args:
        address: this machine's address in the network of the ranks.
    """
    name = None if "GLOO_SOCKET_IFNAME" in os.environ else _interface_of(address)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name}


def _interface_of(address: str) -> str | None:
    """The network interface of this machine that has the address; None where no interface, or more than one,
    has it."""
    import psutil

    interfaces = {
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == address for entry in entries)
    }
    return interfaces.pop() if len(interfaces) == 1 else None


def threads_per_rank(num_ranks: int) -> int:
    """CPU threads of each rank where this machine has `num_ranks` ranks; OMP_NUM_THREADS goes first."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, num_cores() // num_ranks)
