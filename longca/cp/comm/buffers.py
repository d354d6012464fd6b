"""Receive buffers of a prepared strategy.

A sender that writes straight into a receiver's memory must know the address. So buffers have names, the same on all ranks; a strategy
reserves them while it is prepared, and all ranks allocate them together. Messages of NCCL and gloo need none of this: their receive
buffers are ordinary tensors, made when they are needed.

    while prepared:  reserve("keys 0: k", bytes) …   then allocate(), all ranks together
    in each call:    receiver:  x = empty("keys 0: k", shape, like)
                     sender:    (peer, message, offset("keys 0: k", start))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup

ALIGNED_BYTES = 512


class ReceiveBuffers:
    """Receive buffers that are new tensors each time, for messages by NCCL or gloo."""

    fixed: ClassVar[bool] = False
    """True where buffers have fixed addresses, which senders must name"""

    def reserve(self, name: str, num_bytes: int) -> None:
        """Asks for a buffer. Its size is the largest that any rank has asked for under this name."""

    def allocate(self) -> None:
        """Makes the reserved buffers: called once, by all ranks together, after the last `reserve`."""

    def empty(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor to receive into: contiguous, with the dtype and device of another tensor.

        A later call with the same name may return the same memory. So its content must have been read before, in the order of the stream.
        """
        return like.new_empty(*shape)

    def keep(self, received: torch.Tensor) -> torch.Tensor:
        """The received tensor, or a copy of it that later messages do not overwrite."""
        return received

    def offset(self, name: str, start: int) -> BufferOffset | None:
        """For the sender: where a message starts in a buffer, in elements. None where senders need not know."""
        return None


class SymmetricBuffer(Protocol):
    """Memory of the same size on every rank, which every rank can write to."""

    def view(self, rank: int, start_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A part of that rank's memory."""
        ...


class SymmetricMemory(Protocol):
    """The allocator of symmetric buffers."""

    def allocate(self, num_bytes: int) -> SymmetricBuffer:
        """Called by all ranks together, with the same size. Raises on all ranks if one has too little memory."""
        ...


class SymmetricReceiveBuffers(ReceiveBuffers):
    """Receive buffers that are parts of one symmetric buffer, which lives as long as the strategy."""

    fixed = True

    def __init__(self, group: WorldGroup, memory: SymmetricMemory) -> None:
        self._group, self._memory = group, memory
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
        return self.view(self._group.rank, name, 0, shape, like.dtype) if math.prod(shape) else like.new_empty(*shape)

    def keep(self, received: torch.Tensor) -> torch.Tensor:
        return received.clone()

    def offset(self, name: str, start: int) -> BufferOffset:
        return BufferOffset(self, name, start)

    def view(self, rank: int, name: str, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A part of a rank's buffer, from its element `start` on."""
        end_byte = (start + math.prod(shape)) * dtype.itemsize
        assert end_byte <= self._sizes[name], f"{name}: {self._sizes[name]} bytes were asked for, not {end_byte}"
        assert self._buffer is not None, "`allocate` comes first"
        return self._buffer.view(rank, self._start_byte[name] + start * dtype.itemsize, shape, dtype)


@dataclass(frozen=True)
class BufferOffset:
    """The place in a receive buffer where a message goes, the same for every receiver."""

    receive_buffers: SymmetricReceiveBuffers
    name: str
    start: int
    """in elements"""

    def at(self, peer: int, message: torch.Tensor) -> torch.Tensor:
        """The memory of that peer which the message is written to."""
        return self.receive_buffers.view(peer, self.name, self.start, message.shape, message.dtype)
