"""The launcher of one machine: ranks are children of this process, driven over pipes."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from longca.core.children.template import Template
from longca.lab.bench.workers.channel import Channel, Message, out_of_reach
from longca.lab.bench.workers.launch import Rank, RankPlacement, end, rank_log, worker_options
from longca.lab.bench.workers.process import WorkerProcess, network, threads_per_rank
from longca.lab.bench.workers.rendezvous import LOOPBACK


class RankProcess(WorkerProcess):
    """A rank on this machine, driven over two pipes."""

    host = ""

    def __init__(
        self,
        placement: RankPlacement,
        device: str,
        num_threads: int,
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        listener: socket.socket | None = None,
        inherited: Sequence[int] = (),
        judge: int | None = None,
        template: Template | None = None,
    ) -> None:
        """
        Args:
            device: "auto", "cpu" or "cuda".
            num_threads: CPU threads of this rank.
            log: file for all its output.
            env: environment variables in addition to those of this process.
            listener: for rank 0, where the rendezvous URL has a port: the socket that listens there.
            inherited: further open files that it inherits.
            judge: file descriptor of its socket to the judge.
            template: forks the process, where it can.
        """
        self.placement = placement
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self.channel = Channel(out_of_reach(reader), out_of_reach(writer))
        options = worker_options(placement, device) | {"reader": child_reader, "writer": child_writer}
        given = [child_reader, child_writer, *inherited]
        if listener is not None:
            options["listener"] = listener.fileno()
            given.append(listener.fileno())
        if judge is not None:
            options["judge"] = judge
            given.append(judge)
        try:
            super().__init__(options, num_threads, log, given, env, template)
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
        self.close_log()


class Local:
    """All ranks on this machine, as children of this process."""

    num_ranks: int | None = None
    lost = ""

    def __init__(self) -> None:
        self.template: Template | None = None
        """forks ranks, if a pool has made one"""

    def start(self, world: int, device: str, log: Path, judge: int | None = None) -> list[Rank]:
        ranks: list[Rank] = []
        env = network(LOOPBACK) if world > 1 else {}
        with _meeting_place(world) as (url, listener, inherited):
            try:
                for rank in range(world):
                    ranks.append(
                        RankProcess(
                            RankPlacement(rank, world, rank, url),
                            device,
                            threads_per_rank(world),
                            rank_log(log, rank, world),
                            env,
                            listener=None if rank else listener,
                            inherited=inherited,
                            judge=None if rank else judge,
                            template=self.template,
                        )
                    )
            except BaseException:
                end(ranks)
                raise
        return ranks


@contextmanager
def _meeting_place(world: int) -> Iterator[tuple[str, socket.socket | None, list[int]]]:
    """(rendezvous URL, socket that listens there, open files that all ranks must inherit) for ranks on this
    machine.

    On Linux it is a file in memory without a name, which torch's file store uses by way of an inherited
    descriptor: no port is open, and nothing is left of it however the ranks end. Elsewhere it is a port of
    the loopback interface. Both are open until the ranks have them.
    """
    if world == 1:
        yield "", None, []
    elif hasattr(os, "memfd_create"):
        store = os.memfd_create("longca-ranks")
        try:
            yield f"file:///proc/self/fd/{store}", None, [store]
        finally:
            os.close(store)
    else:
        with socket.create_server((LOOPBACK, 0)) as listener:
            yield f"tcp://{LOOPBACK}:{listener.getsockname()[1]}", listener, []
