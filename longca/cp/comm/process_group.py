"""The ranks of a job, and what they say to each other."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from longca.core.errors import UserError
from longca.cp.comm.buffers import ReceiveBuffers, SymmetricReceiveBuffers
from longca.cp.comm.p2p import CommStream, exchange, peers
from longca.cp.comm.symmetric import SymmetricCommStream
from longca.cp.comm.symmetric_cuda import CudaMemory
from longca.cp.comm.symmetric_trial import why_not

if TYPE_CHECKING:
    import torch

    from longca.core.study import Messages

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
DEFAULT_TIMEOUT_S = 300.0


class Comm:
    """This process as one of `world` ranks, each on a device of its own.

    Tensors on GPUs go over NCCL, everything on the host over gloo: small messages then neither wait for the GPU's stream nor
    disturb it. Every method but `close` is called by all ranks alike. Without a peer it raises `channels.PeerLost`, at the latest
    after the timeout; on a GPU, where the host does not wait, NCCL ends the process then, but for what copy engines move: who started the
    ranks must end those then. One instance in a process, since torch has one default group.
    """

    def __init__(self, rank: int, world: int, local_rank: int, rendezvous: str, device_type: str,
                 timeout_s: float = DEFAULT_TIMEOUT_S, meeting: int | None = None) -> None:
        """
        Args:
            local_rank: number of this rank's GPU on its machine; of no account on CPUs.
            rendezvous: URL where the ranks meet: file:///… (a file that is not there yet), tcp://host:port of rank 0, or env://;
                empty for a lone rank.
            device_type: "cpu" or "cuda".
            timeout_s: the longest that a rank waits for another one.
            meeting: for rank 0 and tcp://host:port: a socket that listens there already; without it, rank 0 opens one.
        """
        import torch
        import torch.distributed as dist

        self.rank, self.world = rank, world
        self.device = torch.device("cpu") if device_type == "cpu" else torch.device(device_type, local_rank)
        self.keeps_order = self.device.type == "cuda"
        """a lane's messages follow each other on a stream, also where one passes on what another brings: the host need not wait"""
        self.moved_bytes = 0
        """bytes that this rank has sent to others by `all_to_all` and lanes"""
        backend, device_id = "gloo", None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            backend, device_id = "cpu:gloo,cuda:nccl", self.device
        timeout = timedelta(seconds=timeout_s)
        url = urlsplit(rendezvous)
        store = None if rendezvous else dist.HashStore()
        if url.scheme == "tcp":
            store = dist.TCPStore(url.hostname, url.port, world, rank == 0, timeout, master_listen_fd=meeting)
        dist.init_process_group(backend, init_method=None if store else rendezvous, store=store, rank=rank,
                                world_size=world, timeout=timeout, device_id=device_id)
        self._token = torch.zeros(1, device=self.device)
        self._timeout = timedelta(seconds=timeout_s)
        self.messages: Messages = "nccl"
        self.messages_note = ""
        """what came of asking for others, for a reader; the same on all ranks"""
        self._lanes: dict[tuple[Messages, str], CommStream | SymmetricCommStream] = {}
        self._memory = CudaMemory(self)
        self._refused: str | None = None  # why "symmetric" is not to be had, "" if it is; None before it was tried

    @classmethod
    def from_torchrun(cls, device_type: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Comm:
        """The rank that the environment names, as torchrun sets it. Raises UserError where it does not."""
        missing = [name for name in TORCHRUN if name not in os.environ]
        if missing:
            raise UserError(f"Environment variable {missing[0]} is not set", why="it says which rank this process is",
                            todo="Start the ranks with torchrun")
        rank, world, local_rank = (int(os.environ[name]) for name in TORCHRUN[:3])
        return cls(rank, world, local_rank, "env://", device_type, timeout_s)

    def all_to_all(self, send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
        """A piece for every rank, and a piece from every rank, in the order of ranks.

        Args:
            send: 1-d, contiguous; pieces of `send_sizes` elements, which may be 0 and differ.
            recv_sizes: elements from each rank.

        Returns:
            1-d tensor of the pieces received. On a GPU it is ready in the order of the current stream; the host does not wait.
        """
        self.moved_bytes += (sum(send_sizes) - send_sizes[self.rank]) * send.element_size()
        return exchange(send, send_sizes, recv_sizes)

    def use(self, messages: Messages) -> None:
        """How messages go in the lanes and landings that are asked for from now on: see `longca.core.study.Measure.messages`."""
        self._memory.release()
        self.messages, self.messages_note = "nccl", ""
        if messages == "nccl":
            return
        if self._refused is None:
            self._refused = why_not(self, self._memory) or ""
        if self._refused:
            self.messages_note = f"messages by NCCL or gloo: {self._refused}"
        else:
            self.messages, self.messages_note = messages, "messages by copy engines, into symmetric memory"

    def lane(self, name: str) -> CommStream | SymmetricCommStream:
        """The lane of that name: made when it is first asked for, by all ranks alike, and kept."""
        key = self.messages, name
        if key not in self._lanes:
            symmetric = self.messages == "symmetric"
            self._lanes[key] = SymmetricCommStream(self._memory.wire(), self) if symmetric else CommStream(self._new_group(), self)
        return self._lanes[key]

    def landings(self) -> ReceiveBuffers:
        """Where messages of one prepared strategy land."""
        return SymmetricReceiveBuffers(self, self._memory) if self.messages == "symmetric" else ReceiveBuffers()

    @property
    def unseen_bytes(self) -> int:
        """Memory of landings on this rank, which torch's allocator does not count."""
        return self._memory.held_bytes

    def barrier(self) -> None:
        """Nobody goes on before all are here. On a GPU the streams wait, not the hosts: ranks are then level to microseconds."""
        import torch.distributed as dist

        with peers():
            dist.all_reduce(self._token)

    def any(self, mine: bool) -> bool:
        """Whether some rank says yes; the host waits for the answer."""
        import torch
        import torch.distributed as dist

        answer = torch.tensor(int(mine))
        with peers():
            dist.all_reduce(answer, dist.ReduceOp.MAX)
        return bool(answer)

    def gather(self, mine: Any) -> list[Any]:
        """Everybody's object, by rank; for small ones."""
        import torch.distributed as dist

        objects: list[Any] = [None] * self.world
        with peers():
            dist.all_gather_object(objects, mine)
        return objects

    def gather_rows(self, mine: torch.Tensor, num_rows: list[int]) -> list[torch.Tensor] | None:
        """The tensors of all ranks, by rank, on rank 0; None elsewhere. Rank r's has `num_rows[r]` rows. Not counted as moved."""
        row = math.prod(mine.shape[1:])
        to_first = [mine.numel(), *[0] * (self.world - 1)]
        from_all = [rows * row if self.rank == 0 else 0 for rows in num_rows]
        received = exchange(mine.contiguous().view(-1), to_first, from_all)
        if self.rank:
            return None
        return [part.view(rows, *mine.shape[1:]) for part, rows in zip(received.split(from_all), num_rows, strict=True)]

    def close(self) -> None:
        """Leave the group."""
        import torch.distributed as dist

        self._lanes.clear()
        dist.destroy_process_group()

    def _new_group(self) -> Any:
        """A process group of all ranks that has met once: what comes first in a group must concern all of it, which messages do not."""
        import torch.distributed as dist

        options, backend = None, "gloo"
        if self.device.type == "cuda":
            options, backend = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True), "nccl"
        with peers():
            group = dist.new_group(list(range(self.world)), self._timeout, backend, options)
            dist.all_reduce(self._token, group=group)
        return group
