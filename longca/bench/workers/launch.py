"""Starting ranks, however the processes come to their machines: what a rank must know, and what a launcher does.

`local.Local` starts them all on this machine; `job.Job` has tasks start them that torchrun or srun brought there.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from longca.bench.workers.channel import Message


@dataclass(frozen=True)
class RankPlacement:
    """Where a rank stands among the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """which of the machine's devices is its own"""
    rendezvous: str = ""
    """URL at which the ranks meet: tcp://host:port of rank 0; empty for one rank"""


class Rank(Protocol):
    """A worker process, seen from the runner, wherever it runs."""

    place: RankPlacement
    log: Path
    """the file that takes what it prints"""
    host: str
    """its machine; empty for this one"""

    def fileno(self) -> int:
        """What a selector waits for: there is a message, or the process has ended."""
        ...

    def send(self, message: Message) -> None:
        """Raises EOFError where the process has ended."""
        ...

    def receive(self) -> list[Message]:
        """Waits. Raises EOFError where the process has ended."""
        ...

    @property
    def is_alive(self) -> bool: ...

    def begin(self, title: str) -> None:
        """Head the part of its log that `tail` will show."""
        ...

    def tail(self) -> str:
        """The end of what it has printed since `begin`."""
        ...

    def ask_for_stack(self) -> None:
        """Have it print where it is."""
        ...

    def whereabouts(self) -> str:
        """File and line of where it was when asked; empty where it did not say."""
        ...

    def cause_of_death(self) -> str:
        """How the process ended, once it has."""
        ...

    def ask_to_stop(self, *, gently: bool) -> None:
        """Tell it to end, or have it killed; does not wait, so that all ranks end at the same time."""
        ...

    def stop(self, deadline: float) -> None:
        """Wait for its end until then (by the monotonic clock), and end it by force, with all processes it has started."""
        ...


class Launcher(Protocol):
    """Starts the ranks of a group."""

    @property
    def num_ranks(self) -> int | None:
        """How many there can be; None where that is up to the devices that a rank finds."""
        ...

    @property
    def lost(self) -> str:
        """What has gone since the start, so that there are fewer ranks now; empty if nothing has."""
        ...

    def start(self, world: int, device: str, log: Path) -> list[Rank]:
        """By rank, started but not yet ready. Raises OSError where a process cannot be started, and HostLost.

        Args:
            device: "auto", "cpu" or "cuda".
            log: path of the logs, without the suffix that tells ranks apart.
        """
        ...


class HostLost(Exception):
    """A machine that was to run ranks, or the task there that starts them, is gone."""


def end(ranks: list[Rank], *, patience_s: float = 0.0) -> None:
    """All of them, in time or by force."""
    for rank in ranks:
        rank.ask_to_stop(gently=patience_s > 0)
    deadline = time.monotonic() + patience_s
    for rank in ranks:
        rank.stop(deadline)


def worker_options(place: RankPlacement, device: str) -> dict[str, object]:
    """What the worker's command line says of its place."""
    return {**asdict(place), "device": device}


def rank_log(log: Path, rank: int, world: int) -> Path:
    """The file for what a rank prints."""
    return log.with_name(log.name + (f"-rank{rank}.log" if world > 1 else ".log"))
