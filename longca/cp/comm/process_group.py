"""The ranks of a job, or of a process group that is there already, and the collectives that all of them call
together."""

# `torch.distributed` documents its stores and names them in no `__all__`
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from longca.core import UserError
from longca.cp.comm.machine import gloo_interface, local_store, new_group

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    import torch

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
DEFAULT_TIMEOUT_S = 300.0
ABORT_S = 5.0
"""the longest that a rank waits for the abort of messages on its GPU"""


class PeerLost(RuntimeError):
    """A peer rank failed or timed out. The rank that raises this is not the cause."""


@contextmanager
def as_peer_lost() -> Iterator[None]:
    """Turns the bare RuntimeError that torch raises for a missing peer into `PeerLost`."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            f"another rank is gone, or came later than the timeout: its own output says why. torch reports: "
            f"{error}"
        ) from error


class WorldGroup:
    """This process as one of `world` ranks, each on a device of its own.

    Tensors on GPUs go over NCCL. Everything on the host goes over gloo, so that small messages neither wait
    for the GPU's stream nor disturb it. All ranks call every method but `close` alike. If a peer is missing,
    a method raises `PeerLost`, at the latest after the timeout. On a GPU, where the host does not wait, NCCL
    then ends the process. Copy engines have no such watch: whoever started the ranks must end those that wait
    for them, unless `abandon` can release them (`Comm.can_release`).

    The constructor makes torch's default group, of which a process has one. `over` takes a group that is
    there and leaves it in place.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        local_rank: int,
        rendezvous: str,
        device_type: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        meeting: int | None = None,
    ) -> None:
        """
        Args:
            local_rank: number of this rank's GPU on its machine; not used on CPUs.
            rendezvous: URL where the ranks meet: file:///… (a file that is empty or not there yet),
                tcp://host:port of rank 0, or env://; empty for a lone rank.
            device_type: "cpu" or "cuda".
            timeout_s: the longest that a rank waits for another one.
            meeting: for rank 0 and tcp://host:port: a socket that listens there already; without it, rank 0
                opens one.
        """
        import torch
        import torch.distributed as dist

        device = torch.device("cpu") if device_type == "cpu" else torch.device(device_type, local_rank)
        backend = "gloo"
        device_id = None
        if device.type == "cuda":
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
            device_id = device
        timeout = timedelta(seconds=timeout_s)
        url: Any = urlsplit(rendezvous)  # torch refuses tcp:// without a host or a port
        store = None if rendezvous else dist.HashStore()
        if url.scheme == "tcp":
            store = dist.TCPStore(url.hostname, url.port, world, rank == 0, timeout, master_listen_fd=meeting)
        elif (
            url.scheme == "file"
        ):  # not by torch's own reading of the URL, which takes no path that needs quoting
            store = dist.FileStore(unquote(url.path), world)
            store.set_timeout(timeout)
        with gloo_interface():
            dist.init_process_group(
                backend,
                init_method=None if store else rendezvous,
                store=store,
                rank=rank,
                world_size=world,
                timeout=timeout,
                device_id=device_id,
            )
        self._enter(rank, world, device, timeout)

    @classmethod
    def over(cls, torch_group: Any, device: torch.device, timeout_s: float = DEFAULT_TIMEOUT_S) -> Self:
        """The ranks of a process group that is there already. All of its ranks call it together, and no
        others.

        Messages go through groups of their own, so that the timeout holds for them and nothing else waits for
        them.

        Args:
            torch_group: `torch.distributed.ProcessGroup`.
        """
        import torch.distributed as dist

        group = cls.__new__(cls)
        group._enter(
            dist.get_rank(torch_group), dist.get_world_size(torch_group), device, timedelta(seconds=timeout_s)
        )
        group._members = sorted(dist.get_process_group_ranks(torch_group))
        group.torch_group = torch_group
        group._is_new = False
        group._host_group = group._made_group("gloo")
        group.rank = dist.get_rank(
            group._host_group
        )  # torch counts the ranks of a new group in their order in the default group
        try:
            group._check_devices()
            group._device_group = group._host_group if device.type == "cpu" else group._new_group()
        except Exception:
            group.close()
            raise
        return group

    def _enter(self, rank: int, world: int, device: torch.device, timeout: timedelta) -> None:
        """Sets the state that does not depend on how the group came about."""
        import torch
        import torch.distributed as dist

        self.rank = rank
        self.world = world
        self.device = device
        self.moved_bytes = 0
        """bytes that this rank has sent to others by `all_to_all` and by comm streams"""
        self.torch_group: Any = dist.group.WORLD
        self._token = torch.zeros(1, device=device)
        self._timeout = timeout
        self._members = list(range(world))  # numbers of these ranks in the default group
        self._is_new = True  # that is made here
        self._host_group: Any = None  # for tensors on the host; None: the default group
        self._device_group: Any = None  # for tensors on the device, likewise
        self._made: list[Any] = []

    @classmethod
    def from_torchrun(cls, device_type: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Self:
        """The rank that the environment names, as torchrun sets it. Raises UserError where it does not."""
        missing = [name for name in TORCHRUN if name not in os.environ]
        if missing:
            raise UserError(
                f"Environment variable {missing[0]} is not set",
                why="it says which rank this process is",
                todo="Start the ranks with torchrun",
            )
        rank, world, local_rank = (int(os.environ[name]) for name in TORCHRUN[:3])
        url, listener = local_store(os.environ) or ("env://", None)
        meeting = None if listener is None else listener.detach()  # torch closes it
        return cls(rank, world, local_rank, url, device_type, timeout_s, meeting)

    @property
    def timeout_s(self) -> float:
        """The longest that this rank waits for another one."""
        return self._timeout.total_seconds()

    def new_host_group(self) -> Any:
        """A further torch process group over gloo, for the caller alone. All ranks make it together."""
        return self._made_group("gloo")

    def abandon(self) -> None:
        """Releases streams of the GPU that wait for messages of a peer. Nothing can be sent afterwards.

        Buffers of messages that have not arrived stay as they are. On CPUs the timeout ends each message.
        """
        if self.device.type != "cuda":
            return
        from torch.distributed.distributed_c10d import _abort_process_group

        groups = [group for group in self._made if self._is_nccl(group)]
        self._made = [group for group in self._made if group not in groups]  # `close` must not wait for these

        def abort(group: Any) -> None:
            with suppress(Exception):  # it must not hide the reason why ranks end
                _abort_process_group(group)

        # All at once: an abort waits for the whole GPU once it has told its own messages to end, so messages
        # of a group that is not told yet would hold it up for ever. If one hangs all the same, the caller
        # still raises.
        threads = [
            threading.Thread(target=abort, args=(group,), name="abort of messages", daemon=True)
            for group in groups
        ]
        deadline_s = time.monotonic() + min(ABORT_S, self.timeout_s)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _is_nccl(self, group: Any) -> bool:
        with suppress(Exception):  # a group without a backend for this device
            return group._get_backend(self.device).name() == "nccl"
        return False

    def all_to_all(self, send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int]) -> torch.Tensor:
        """Sends a piece to every rank and receives one from every rank, in the order of ranks.

        Args:
            send: 1-d, contiguous; pieces of `send_sizes` elements, which may be 0 and differ.
            recv_sizes: elements from each rank.

        Returns:
            1-d tensor of the pieces received. On a GPU it is ready in the order of the current stream; the
            host does not wait.
        """
        self.moved_bytes += (sum(send_sizes) - send_sizes[self.rank]) * send.element_size()
        return _all_to_all(send, send_sizes, recv_sizes, self._device_group)

    def barrier(self) -> None:
        """Blocks until every rank has reached this point. On a GPU the streams wait, not the hosts, so that
        ranks continue within microseconds of each other."""
        import torch.distributed as dist

        with as_peer_lost():
            dist.all_reduce(self._token, group=self._device_group)

    def any(self, mine: bool) -> bool:
        """True on all ranks if some rank says yes; the host waits for the answer."""
        import torch
        import torch.distributed as dist

        answer = torch.tensor(int(mine))
        with as_peer_lost():
            dist.all_reduce(answer, dist.ReduceOp.MAX, group=self._host_group)
        return bool(answer)

    def largest(self, mine: Sequence[float]) -> list[float]:
        """The largest of each number over all ranks; the host waits for the answer."""
        import torch
        import torch.distributed as dist

        answer = torch.tensor(list(map(float, mine)), dtype=torch.float64)
        with as_peer_lost():
            dist.all_reduce(answer, dist.ReduceOp.MAX, group=self._host_group)
        return answer.tolist()

    def gather(self, mine: Any) -> list[Any]:
        """The values of all ranks, by rank; for small ones, of what JSON knows. They travel as JSON: unlike a
        pickle it cannot be code."""
        import numpy as np

        return [
            json.loads(part.tobytes())
            for part in self.gather_arrays(np.frombuffer(json.dumps(mine).encode(), np.uint8))
        ]

    def gather_arrays(self, mine: np.ndarray) -> list[np.ndarray]:
        """The arrays of all ranks, by rank: of one dimension and one dtype; their lengths may differ."""
        import numpy as np
        import torch
        import torch.distributed as dist

        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.world)]
        with as_peer_lost():
            dist.all_gather(lengths, torch.tensor([len(mine)]), group=self._host_group)
        padded = torch.from_numpy(np.zeros(max(map(int, lengths)), mine.dtype))
        padded.numpy()[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        if len(padded):
            with as_peer_lost():
                dist.all_gather(parts, padded, group=self._host_group)
        return [part.numpy()[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def gather_rows(self, mine: torch.Tensor, num_rows: list[int]) -> list[torch.Tensor] | None:
        """The tensors of all ranks, by rank, on rank 0; None elsewhere. Rank r's has `num_rows[r]` rows. Not
        counted as moved."""
        row = math.prod(mine.shape[1:])
        to_first = [mine.numel(), *[0] * (self.world - 1)]
        from_all = [rows * row if self.rank == 0 else 0 for rows in num_rows]
        received = _all_to_all(mine.contiguous().view(-1), to_first, from_all, self._device_group)
        if self.rank:
            return None
        return [
            part.view(rows, *mine.shape[1:])
            for part, rows in zip(received.split(from_all), num_rows, strict=True)
        ]

    def close(self) -> None:
        """Leaves the group. One that was there before stays; what was made on top of it goes."""
        import torch.distributed as dist

        if self._is_new:
            dist.destroy_process_group()
        else:
            for group in self._made:
                dist.destroy_process_group(group)
        self._made.clear()

    def _check_devices(self) -> None:
        """Raises UserError on all ranks where some have GPUs and some do not: no NCCL group has both."""
        types = self.gather(self.device.type)
        for rank, device_type in enumerate(types):
            if device_type != types[0]:
                raise UserError(
                    "Argument 'device' differs between ranks",
                    why=f"rank 0 has {types[0]}, rank {rank} has {device_type}",
                    todo="Give the same on every rank",
                )

    def _new_group(self) -> Any:
        """A further torch process group of all ranks, with a stream of high priority on GPUs.

        All ranks have met in it once: the first operation of a group must concern all of its ranks, and
        messages do not.
        """
        import torch.distributed as dist

        options = None
        backend = "gloo"
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            backend = "nccl"
        group = self._made_group(backend, options)
        with as_peer_lost():
            dist.all_reduce(self._token, group=group)
        return group

    def _made_group(self, backend: str, options: Any = None) -> Any:
        """A further torch process group of these ranks. Ranks outside it take no part."""
        with as_peer_lost():
            group = new_group(self._members, backend, self._timeout, options)
        self._made.append(group)
        return group


def _all_to_all(
    send: torch.Tensor, send_sizes: list[int], recv_sizes: list[int], torch_group: Any
) -> torch.Tensor:
    import torch.distributed as dist

    received = send.new_empty(sum(recv_sizes))
    with as_peer_lost():
        dist.all_to_all_single(received, send, recv_sizes, send_sizes, group=torch_group)
    return received
