"""Point-to-point messages between ranks, by NCCL or gloo, and the buffers that receive them.

A sender that writes directly into a receiver's memory needs the address. So buffers have names, the same on
all ranks; a strategy reserves them during preparation, and all ranks allocate them together. NCCL and gloo do
not need this: their receive buffers are ordinary tensors, allocated on demand.

    while prepared:  reserve("keys 0: k", bytes) …   then allocate(), all ranks together
    in each call:    receiver:  x = empty("keys 0: k", shape, like)
                     sender:    (peer, message, offset("keys 0: k", start))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from longca.cp.comm.process_group import as_peer_lost

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup


ALIGNED_BYTES = 512


class ReceiveBuffers:
    """Receive buffers for NCCL or gloo: a new tensor each time."""

    fixed: ClassVar[bool] = False
    """True if buffers have fixed addresses, which senders must specify"""

    def reserve(self, name: str, num_bytes: int) -> None:
        """Requests a buffer. Its size is the largest request of any rank under this name."""

    def allocate(self) -> None:
        """Allocates the reserved buffers: called once, collectively, after the last `reserve`."""

    def empty(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor to receive into: contiguous, with the dtype and device of another tensor.

        A later call with the same name may return the same memory, so its content must be read before that,
        in stream order.
        """
        return like.new_empty(*shape)

    def keep(self, received: torch.Tensor) -> torch.Tensor:
        """The received tensor, or a copy that later messages do not overwrite."""
        return received

    def offset(self, name: str, start: int) -> BufferOffset | None:
        """For the sender: the start of a message in a buffer, in elements. None if senders do not need it."""
        return None


class SymmetricBuffer(Protocol):
    """Memory of the same size on every rank, which every rank can write to."""

    def view(self, rank: int, start_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A part of that rank's memory."""
        ...


class SymmetricMemory(Protocol):
    """The allocator of symmetric buffers."""

    def allocate(self, num_bytes: int) -> SymmetricBuffer:
        """A collective call with the same size on all ranks. Raises on all ranks if one lacks memory."""
        ...


class SymmetricReceiveBuffers(ReceiveBuffers):
    """Receive buffers in one symmetric buffer, which lives as long as the strategy."""

    fixed = True

    def __init__(self, group: WorldGroup, memory: SymmetricMemory) -> None:
        self._group = group
        self._memory = memory
        self._sizes: dict[str, int] = {}
        self._start_byte: dict[str, int] = {}
        self._buffer: SymmetricBuffer | None = None

    def reserve(self, name: str, num_bytes: int) -> None:
        self._sizes[name] = max(self._sizes.get(name, 0), num_bytes)

    def allocate(self) -> None:
        sizes: dict[str, int] = {}
        for of_rank in self._group.gather(self._sizes):
            sizes |= {name: max(num_bytes, sizes.get(name, 0)) for name, num_bytes in of_rank.items()}
        total = 0
        for name in sorted(sizes):
            self._start_byte[name] = total
            total += -(-sizes[name] // ALIGNED_BYTES) * ALIGNED_BYTES
        self._sizes = sizes
        self._buffer = self._memory.allocate(total) if total else None

    def empty(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return (
            self.view(self._group.rank, name, 0, shape, like.dtype)
            if math.prod(shape)
            else like.new_empty(*shape)
        )

    def keep(self, received: torch.Tensor) -> torch.Tensor:
        return received.clone()

    def offset(self, name: str, start: int) -> BufferOffset:
        return BufferOffset(self, name, start)

    def view(
        self, rank: int, name: str, start: int, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A part of a rank's buffer, from element `start` on."""
        end_byte = (start + math.prod(shape)) * dtype.itemsize
        assert end_byte <= self._sizes[name], (
            f"{name}: {self._sizes[name]} bytes were asked for, not {end_byte}"
        )
        assert self._buffer is not None, "`allocate` comes first"
        return self._buffer.view(rank, self._start_byte[name] + start * dtype.itemsize, shape, dtype)


@dataclass(frozen=True)
class BufferOffset:
    """The destination of a message in a receive buffer, the same for every receiver."""

    receive_buffers: SymmetricReceiveBuffers
    name: str
    start: int
    """in elements"""

    def at(self, peer: int, message: torch.Tensor) -> torch.Tensor:
        """The peer's memory for the message."""
        return self.receive_buffers.view(peer, self.name, self.start, message.shape, message.dtype)


if TYPE_CHECKING:
    Message = tuple[int, torch.Tensor]  # peer, contiguous tensor
    # peer, contiguous tensor, destination at the peer
    Outgoing = tuple[int, torch.Tensor, BufferOffset | None]


class Pending:
    """Posted messages, and the tensors that they need until completion."""

    def __init__(self, works: Sequence[Any] = (), tensors: Sequence[torch.Tensor] = ()) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> None:
        """Waits until all messages are sent and received: on a GPU the current stream waits, not the host. A
        second call has no cost."""
        works = self._works
        self._works = ()
        with as_peer_lost():
            for work in works:
                work.wait()
        self._tensors = ()


class CommStream:
    """Messages between pairs of ranks, in the order of posting, independent of other comm streams. A comm
    stream is a separate torch process group.

    On a GPU it has a high-priority CUDA stream: a copy kernel that waits next to an attention kernel gets the
    next free multiprocessor.
    """

    def __init__(self, torch_group: Any, group: WorldGroup) -> None:
        """
        Args:
            torch_group: `torch.distributed.ProcessGroup` of all ranks, used only by this stream.
        """
        self._torch_group = torch_group
        self._group = group

    def post(self, sends: Sequence[Outgoing], receives: Sequence[Message]) -> Pending:
        """Posts all as one batch. Sender and receiver must list their messages in the same order. A rank with
        no messages posts nothing.

        Sent tensors must not change, and destination tensors must not be touched, before `wait` on the
        result. On a GPU the batch starts after the present work of the current stream.
        """
        import torch.distributed as dist

        leaving = [(peer, x) for peer, x, _ in sends if x.numel()]
        receives = [(peer, x) for peer, x in receives if x.numel()]
        if not leaving and not receives:
            return Pending()
        operations = [
            dist.P2POp(operation, x, group=self._torch_group, group_peer=peer)
            for operation, messages in ((dist.irecv, receives), (dist.isend, leaving))
            for peer, x in messages
        ]
        self._group.moved_bytes += sum(x.nbytes for _, x in leaving)
        with as_peer_lost():
            return Pending(dist.batch_isend_irecv(operations), [x for _, x in (*leaving, *receives)])

    def all_to_all(
        self,
        received: Sequence[torch.Tensor],
        sent: Sequence[torch.Tensor],
        receive_sizes: Sequence[Sequence[int]],
        send_sizes: Sequence[Sequence[int]],
    ) -> Pending:
        """One collective for each tensor, called by all ranks: one host call for any number of peers.

        Args:
            received, sent: contiguous; a piece for each rank, in the order of ranks.
            receive_sizes, send_sizes: elements in each piece, by tensor and rank; 0 for a missing piece.
        """
        import torch.distributed as dist

        works = []
        tensors = [*received, *sent]
        with as_peer_lost():
            for target, source, arriving, leaving in zip(
                received, sent, receive_sizes, send_sizes, strict=True
            ):
                self._group.moved_bytes += (sum(leaving) - leaving[self._group.rank]) * source.element_size()
                works.append(
                    dist.all_to_all_single(
                        target.view(-1),
                        source.view(-1),
                        list(arriving),
                        list(leaving),
                        self._torch_group,
                        async_op=True,
                    )
                )
        return Pending(works, tensors)
