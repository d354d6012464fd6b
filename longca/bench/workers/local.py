"""The launcher of one machine: ranks are children of this process, driven over pipes."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from longca.bench.workers.channel import Channel, Message
from longca.bench.workers.launch import Rank, RankPlacement, end, rank_log, worker_options
from longca.bench.workers.process import WorkerProcess, threads_per_rank


class RankProcess(WorkerProcess):
    """A rank on this machine, driven over two pipes."""

    host = ""

    def __init__(self, placement: RankPlacement, device: str, num_threads: int, log: Path, listener: socket.socket | None = None,
                 env: Mapping[str, str] | None = None) -> None:
        """
        Args:
            device: "auto", "cpu" or "cuda".
            num_threads: CPU threads of this rank.
            log: file for all its output.
            listener: for rank 0: the socket that listens at the rendezvous URL of the ranks.
            env: environment variables in addition to those of this process.
        """
        self.placement = placement
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self.channel = Channel(reader, writer)
        options = worker_options(placement, device) | {"reader": child_reader, "writer": child_writer}
        given = [child_reader, child_writer]
        if listener is not None:
            options["listener"] = listener.fileno()
            given.append(listener.fileno())
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
        with socket.create_server(("127.0.0.1", 0)) as listener:  # open until rank 0 has inherited it: nobody else can take the port
            url = f"tcp://127.0.0.1:{listener.getsockname()[1]}" if world > 1 else ""
            try:
                for rank in range(world):
                    placement = RankPlacement(rank, world, rank, url)
                    ranks.append(RankProcess(placement, device, threads_per_rank(world), rank_log(log, rank, world),
                                             listener if world > 1 and rank == 0 else None))
            except BaseException:
                end(ranks)
                raise
        return ranks
