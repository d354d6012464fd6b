"""The agent: a task of a job that is not the runner. It starts, watches and ends processes of ranks on its
machine, as the runner asks.

A rank's process talks to the runner directly, over a socket that the agent has opened for it. When the
process ends, the agent shuts that connection down, even if other processes still hold it, so that the runner
notices at once.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from longca.core import UserError
from longca.lab.bench.workers.channel import Channel, Message
from longca.lab.bench.workers.launch import RankPlacement, Task, worker_options
from longca.lab.bench.workers.process import WorkerProcess, ending_signals, network, threads_per_rank
from longca.lab.bench.workers.rendezvous import join_rendezvous
from longca.lab.code import package_digest

RENDEZVOUS_SECONDS = 300.0
JOIN_SECONDS = 30.0  # for a rank's own connection, once the runner is known
TICK_SECONDS = 0.1


@dataclass
class _Rank:
    """One process that the agent watches, and the agent's copy of its connection."""

    process: WorkerProcess
    connection: socket.socket


class RunnerLost(UserError):
    """The runner was not found in time, or is gone."""

    exit_code = 3


def serve(task: Task, results: Path) -> None:
    """Serve the runner until it lets this task go. Raises RunnerLost."""
    hello = {"task": task.number, "host": task.host, "local": task.local_number, "code": package_digest()}
    try:
        control = join_rendezvous(results, task.job, hello, RENDEZVOUS_SECONDS)
    except TimeoutError as error:
        raise RunnerLost(f"{task.title} has not found the runner: {error}") from None
    agent = _Agent(task, results, control)
    with _deaf_to_signals():
        try:
            agent.run()
        finally:
            agent.close()


class _Agent:
    def __init__(self, task: Task, results: Path, control: Channel) -> None:
        self.task = task
        self.results = results
        self.control = control
        self.ranks: dict[int, _Rank] = {}
        self.failures: dict[int, str] = {}  # why a process could not be started

    def run(self) -> None:
        while True:
            try:
                request = self.control.wait(TICK_SECONDS)
            except TimeoutError:
                self._reap()
                continue
            except EOFError:
                raise RunnerLost(f"{self.task.title}: the runner is gone") from None
            if request["do"] == "leave":
                return
            self._reap()
            answer = getattr(self, f"do_{request.pop('do')}")(**request)
            if answer is not None:
                with suppress(EOFError):  # found at the next wait
                    self.control.send(answer)

    def close(self) -> None:
        for number in list(self.ranks):
            self.do_stop(number, 0.0)
        self.control.close()

    def do_start(
        self, number: int, placement: Message, device: str, log: str, num_local: int, address: str
    ) -> None:
        """Start a rank's process. If it cannot be started, its connection ends, and `do_cause` answers why.

        Args:
            address: this machine's, at which the process talks to other ranks; empty for the one at which its
                own connection is.
        """
        try:
            channel = join_rendezvous(self.results, self.task.job, {"rank": number}, JOIN_SECONDS)
        except TimeoutError:
            return  # the runner does not wait longer than this either
        with channel:
            connection = socket.socket(fileno=os.dup(channel.reader))
            options = worker_options(RankPlacement(**placement), device) | {
                "reader": channel.reader,
                "writer": channel.reader,
            }
            try:
                process = WorkerProcess(
                    options,
                    threads_per_task(num_local),
                    Path(log),
                    [channel.reader],
                    network(address or connection.getsockname()[0]),
                )
            except OSError as error:
                self.failures[number] = f"its process could not be started: {error}"
                connection.close()
            else:
                self.ranks[number] = _Rank(process, connection)

    def do_begin(self, number: int, title: str) -> None:
        if number in self.ranks:
            self.ranks[number].process.begin(title)

    def do_stack(self, number: int) -> None:
        if number in self.ranks:
            self.ranks[number].process.ask_for_stack()

    def do_whereabouts(self, number: int) -> Message:
        return {"where": self.ranks[number].process.whereabouts() if number in self.ranks else ""}

    def do_tail(self, number: int) -> Message:
        return {"tail": self.ranks[number].process.tail() if number in self.ranks else ""}

    def do_cause(self, number: int) -> Message:
        rank = self.ranks.get(number)
        return {
            "cause": rank.process.cause_of_death()
            if rank
            else self.failures.get(number, "it has not been started")
        }

    def do_kill(self, number: int) -> None:
        if number in self.ranks:
            self.ranks[number].process.kill()

    def do_stop(self, number: int, patience_s: float) -> Message:
        rank = self.ranks.pop(number, None)
        if rank is not None:
            rank.process.wait(patience_s)
            rank.process.kill()
            rank.process.wait(JOIN_SECONDS)
            rank.process.close_log()
            rank.connection.close()
        return {"stopped": number}

    def _reap(self) -> None:
        """Shut down the connections of processes that have ended: their children may still hold them open."""
        for rank in self.ranks.values():
            if not rank.process.is_alive:
                with suppress(OSError):
                    rank.connection.shutdown(socket.SHUT_RDWR)


def threads_per_task(num_local: int) -> int:
    """CPU threads of one rank where the job has `num_local` ranks on this machine. OMP_NUM_THREADS goes
    first, then SLURM_CPUS_PER_TASK."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return (
        int(given)
        if given.isdigit() and int(given) and "OMP_NUM_THREADS" not in os.environ
        else threads_per_rank(num_local)
    )


@contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Ignore signals that end a run meanwhile.

    A cluster that ends a job signals all its tasks. The runner alone reacts, for all of them: if a rank died
    of the signal first, its cell would look as if it had failed.
    """
    numbers = ending_signals()
    before = [
        signal.signal(number, lambda *_: None) for number in numbers
    ]  # not SIG_IGN, which children would inherit
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
