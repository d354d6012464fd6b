"""Interfaces of launchers and ranks, the placement that a rank is told, and the task of a job that this
process is.

`local.Local` starts all ranks on this machine. `job.Job` has them started by tasks that torchrun or srun has
started.
"""

import hashlib
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from longca.core import UserError, boot_id
from longca.lab.bench.workers.channel import Message
from longca.lab.studies import WAS_AT
from longca.lab.studies.config import Launch


@dataclass(frozen=True)
class RankPlacement:
    """The number of a rank, its device, and the address at which it meets the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """index of its device on its machine"""
    rendezvous: str = ""
    """URL of the ranks' rendezvous: file:///… on one machine, tcp://host:port of rank 0 on several; empty for
    one rank"""


class Rank(Protocol):
    """A worker process as the runner sees it, on this machine or another."""

    placement: RankPlacement
    log: Path
    """file for its output"""
    host: str
    """its machine; empty for this one"""

    def fileno(self) -> int:
        """The descriptor that a selector waits for. It is readable if there is a message or the process has
        ended."""
        ...

    def send(self, message: Message) -> None:
        """Send a message. Raises EOFError if the process has ended."""
        ...

    def receive(self) -> list[Message]:
        """Messages that have arrived; blocks until there is something to read. Raises EOFError if the process
        has ended."""
        ...

    @property
    def is_alive(self) -> bool: ...

    def begin(self, title: str) -> None:
        """Write a headline into its log; `tail` shows what follows it."""
        ...

    def tail(self) -> str:
        """The last output since `begin`."""
        ...

    def ask_for_stack(self) -> None:
        """Have it print its stack."""
        ...

    def whereabouts(self) -> str:
        """File, line and function in the stack that it printed when asked, or as it died; empty if it printed
        none."""
        ...

    def cause_of_death(self) -> str:
        """The exit code or signal of the ended process, in words."""
        ...

    def ask_to_stop(self, *, gently: bool) -> None:
        """Ask it to end, or have it killed. Does not wait, so that all ranks end at the same time."""
        ...

    def stop(self, deadline: float) -> None:
        """Wait for its end until the deadline (monotonic clock), then kill it with all processes that it has
        started."""
        ...


class Launcher(Protocol):
    """Starts the ranks of a group."""

    @property
    def num_ranks(self) -> int | None:
        """The largest number of ranks; None if it depends on the devices that a rank finds."""
        ...

    @property
    def lost(self) -> str:
        """Names of the tasks that were lost since the start; empty if none was."""
        ...

    def start(self, world: int, device: str, log: Path, judge: int | None = None) -> list[Rank]:
        """Start the ranks and return them in order; they are not ready yet. Raises OSError if a process
        cannot be started, and HostLost.

        Args:
            device: "auto", "cpu" or "cuda".
            log: path of the logs, without the suffix that tells ranks apart.
            judge: file descriptor of rank 0's socket to the judge.
        """
        ...


class HostLost(Exception):
    """A machine that should run ranks, or the task there that starts them, is gone."""


def end(ranks: list[Rank], *, patience_s: float = 0.0) -> None:
    """End all ranks: gently where `patience_s` is positive, by force after that time."""
    for rank in ranks:
        rank.ask_to_stop(gently=patience_s > 0)
    deadline = time.monotonic() + patience_s
    for rank in ranks:
        rank.stop(deadline)


def worker_options(placement: RankPlacement, device: str) -> dict[str, object]:
    """Options of the worker's command line that describe its placement."""
    return {**asdict(placement), "device": device}


def rank_log(log: Path, rank: int, world: int) -> Path:
    """The file for the output of a rank."""
    return log.with_name(log.name + (f"-rank{rank}.log" if world > 1 else ".log"))


# Tasks: the processes that torchrun or srun starts, all with the same command. Task 0 is the runner; the
# others start and watch processes of ranks for it. All is read from variables that the launcher sets, so the
# command has no options for it.

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""variables that srun sets; a batch script, which is no task of a step, has some of them but not
SLURM_STEP_NUM_TASKS"""


@dataclass(frozen=True)
class Task:
    """One of the `num_tasks` processes of a job."""

    number: int
    num_tasks: int
    local_number: int
    """number among the tasks of its machine"""
    host: str
    job: str
    """the same for all tasks of a job, different for any other running job"""
    on_one_machine: bool = False
    """the launcher says that all tasks are on the same machine"""

    @property
    def title(self) -> str:
        return f"task {self.number} on {self.host}"


def find_task(launcher: Launch, environ: Mapping[str, str] | None = None) -> Task | None:
    """The task that the environment describes; None where this process is alone and starts all ranks itself.

    Args:
        launcher: "auto" recognizes each launcher. A job of one task counts as no job.

    Raises:
        UserError: a launcher was named that has not started this process.
    """
    environ = os.environ if environ is None else environ
    ways = {"torchrun": (TORCHRUN, _of_torchrun), "srun": (SRUN, _of_srun)}
    for name, (variables, read) in ways.items():
        if launcher not in ("auto", name):
            continue
        missing = [variable for variable in variables if not environ.get(variable)]
        if not missing:
            task = read(environ)
            return task if task.num_tasks > 1 else None
        if launcher == name:
            raise UserError(
                f"This process was not started by {name}",
                why=f"{missing[0]} is not set",
                todo=f"Start it with {name}, or choose another `launcher`",
            )
    return None


def _of_torchrun(environ: Mapping[str, str]) -> Task:
    on_one_machine = environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
    # jobs of the default id and port on other machines may share the results
    master = f"{boot_id()} {_network()}" if on_one_machine else environ.get("MASTER_ADDR", "")
    job = f"torchrun-{environ['TORCHELASTIC_RUN_ID']}-{environ.get('MASTER_PORT', '')}"
    return Task(
        int(environ["RANK"]),
        int(environ["WORLD_SIZE"]),
        int(environ["LOCAL_RANK"]),
        socket.gethostname(),
        f"{job}-{hashlib.sha256(master.encode()).hexdigest()[:12]}",
        on_one_machine,
    )


def _network() -> int:
    """The number of this process's network namespace, in which a port belongs to one job; 0 if unknown."""
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0


def _of_srun(environ: Mapping[str, str]) -> Task:
    # the node name of Slurm may differ from the host name, as it does where several nodes run on one machine
    host = environ.get("SLURMD_NODENAME") or socket.gethostname()
    return Task(
        int(environ["SLURM_PROCID"]),
        int(environ["SLURM_STEP_NUM_TASKS"]),
        int(environ["SLURM_LOCALID"]),
        host,
        f"slurm-{environ['SLURM_JOB_ID']}-{environ['SLURM_STEP_ID']}",
        environ.get("SLURM_STEP_NUM_NODES") == "1",
    )


class AnswerTimeout(Exception):
    """Not all ranks answered in time."""


class RankDied(Exception):
    """The process of a rank has ended, or is of no use any more."""

    def __init__(self, rank: Rank, cause: str = "") -> None:
        """
        Args:
            cause: why it is of no use; by default the process says how it ended.
        """
        self.type = "BrokenChannel" if cause else "WorkerDied"
        self.cause = cause or rank.cause_of_death()
        self.log = rank.tail()
        self.notes = was_at(rank)
        where = f" on {rank.host}" if rank.host else ""
        super().__init__(
            self.cause if rank.placement.world == 1 else f"rank {rank.placement.rank}{where}: {self.cause}"
        )


class RankWithoutDevice(Exception):
    """A rank has no device, or not one of its own."""


def was_at(rank: Rank) -> tuple[str, ...]:
    """The note that says where in the code a rank was; none where it has printed no stack."""
    where = rank.whereabouts()
    return (f"rank {rank.placement.rank}{WAS_AT}{where}",) if where else ()
