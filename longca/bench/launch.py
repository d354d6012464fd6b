"""Starting ranks, however the processes come to their machines: what a rank must know, and what a launcher does.

`Local` starts them all on this machine; `longca.bench.job.Job` has tasks start them that torchrun or srun brought there.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from longca.bench.channel import Channel, Message
from longca.bench.process import WorkerProcess, threads_per_rank


@dataclass(frozen=True)
class Place:
    """Where a rank stands among the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """which of the machine's devices is its own"""
    rendezvous: str = ""
    """URL at which the ranks meet: tcp://host:port of rank 0; empty for one rank"""


class Rank(Protocol):
    """A worker process, seen from the runner, wherever it runs."""

    place: Place
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


class RankProcess(WorkerProcess):
    """A rank on this machine, driven over two pipes."""

    host = ""

    def __init__(self, place: Place, device: str, num_threads: int, log: Path, meeting: socket.socket | None = None,
                 env: Mapping[str, str] | None = None) -> None:
        """
        Args:
            device: "auto", "cpu" or "cuda".
            num_threads: CPU threads of this rank.
            log: file that takes all it prints.
            meeting: of rank 0: the listening socket at which ranks will meet.
            env: variables for it beside those of this process.
        """
        self.place = place
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self.channel = Channel(reader, writer)
        options = worker_options(place, device) | {"reader": child_reader, "writer": child_writer}
        given = [child_reader, child_writer]
        if meeting is not None:
            options["meeting"] = meeting.fileno()
            given.append(meeting.fileno())
        try:
            super().__init__(options, num_threads, log, given, env)
        except BaseException:
            self.channel.close()
            raise
        finally:
            os.close(child_reader)
            os.close(child_writer)

    def fileno(self) -> int:
        return self.channel.fileno()

    def send(self, message: Message) -> None:
        self.channel.send(message)

    def receive(self) -> list[Message]:
        return self.channel.receive()

    def ask_to_stop(self, *, gently: bool) -> None:
        if gently and self.is_alive:
            with suppress(EOFError):
                self.send({"do": "exit"})
        else:
            self.kill()

    def stop(self, deadline: float) -> None:
        self.wait(deadline - time.monotonic())
        self.kill()
        self.process.wait()
        self.channel.close()


class Local:
    """All ranks on this machine, as children of this process."""

    num_ranks: int | None = None
    lost = ""

    def start(self, world: int, device: str, log: Path) -> list[Rank]:
        ranks: list[Rank] = []
        with socket.create_server(("127.0.0.1", 0)) as meeting:  # held until rank 0 has it: nobody can take the port meanwhile
            url = f"tcp://127.0.0.1:{meeting.getsockname()[1]}" if world > 1 else ""
            try:
                for rank in range(world):
                    ranks.append(RankProcess(Place(rank, world, rank, url), device, threads_per_rank(world), rank_log(log, rank, world),
                                             meeting if world > 1 and rank == 0 else None))
            except BaseException:
                end(ranks)
                raise
        return ranks


def end(ranks: list[Rank], *, patience_s: float = 0.0) -> None:
    """All of them, in time or by force."""
    for rank in ranks:
        rank.ask_to_stop(gently=patience_s > 0)
    deadline = time.monotonic() + patience_s
    for rank in ranks:
        rank.stop(deadline)


def worker_options(place: Place, device: str) -> dict[str, object]:
    """What the worker's command line says of its place."""
    return {**asdict(place), "device": device}


def rank_log(log: Path, rank: int, world: int) -> Path:
    """The file for what a rank prints."""
    return log.with_name(log.name + (f"-rank{rank}.log" if world > 1 else ".log"))
