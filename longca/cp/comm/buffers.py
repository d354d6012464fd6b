"""Where messages land.

A sender that writes straight into a receiver's memory must know where: so places have names, the same on all ranks, and are asked for
while a strategy is prepared. Messages by way of a library need none of this: what they are received into is made when it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import Comm

ALIGNED_BYTES = 512


class ReceiveBuffers:
    """Of one prepared strategy: tensors that are made anew each time, anywhere."""

    fixed: ClassVar[bool] = False
    """senders must know where messages land"""

    def reserve(self, name: str, num_bytes: int) -> None:
        """Asks for a place; of what is asked for under one name, the most counts, on all ranks."""

    def settle(self) -> None:
        """Makes the places: called once, by all ranks together, when all has been asked for."""

    def empty(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """What is to be received into: contiguous, of the dtype and on the device of another tensor.

        Whoever asks for a name again may get the same memory, so what it held must have been read before, in the order of the stream.
        """
        return like.new_empty(*shape)

    def keep(self, landed: torch.Tensor) -> torch.Tensor:
        """What has landed, as a tensor that nobody will write to."""
        return landed

    def spot(self, name: str, first: int) -> BufferOffset | None:
        """Where a message begins in a place, in elements: for the sender. None where it need not know."""
        return None


class Heap(Protocol):
    """Memory of all ranks, of each as much, that each rank can write to."""

    def view(self, rank: int, first_byte: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A part of that rank's."""
        ...


class OpenMemory(Protocol):
    """Where heaps come from."""

    def heap(self, num_bytes: int) -> Heap:
        """Called by all ranks together, with the same size. Raises on all ranks if one has too little memory."""
        ...


class SymmetricReceiveBuffers(ReceiveBuffers):
    """Places in a heap, which stays as it is as long as the strategy does."""

    fixed = True

    def __init__(self, comm: Comm, memory: OpenMemory) -> None:
        self._comm, self._memory = comm, memory
        self._sizes: dict[str, int] = {}
        self._first_byte: dict[str, int] = {}
        self._heap: Heap | None = None

    def reserve(self, name: str, num_bytes: int) -> None:
        self._sizes[name] = max(self._sizes.get(name, 0), num_bytes)

    def settle(self) -> None:
        sizes: dict[str, int] = {}
        for of_rank in self._comm.gather(self._sizes):
            sizes |= {name: max(num_bytes, sizes.get(name, 0)) for name, num_bytes in of_rank.items()}
        total = 0
        for name in sorted(sizes):
            self._first_byte[name] = total
            total += -(-sizes[name] // ALIGNED_BYTES) * ALIGNED_BYTES
        self._sizes = sizes
        self._heap = self._memory.heap(total) if total else None

    def empty(self, name: str, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return self.at(self._comm.rank, name, 0, shape, like.dtype) if math.prod(shape) else like.new_empty(*shape)

    def keep(self, landed: torch.Tensor) -> torch.Tensor:
        return landed.clone()

    def spot(self, name: str, first: int) -> BufferOffset:
        return BufferOffset(self, name, first)

    def at(self, rank: int, name: str, first: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A part of a rank's place, from its element `first` on."""
        end = (first + math.prod(shape)) * dtype.itemsize
        assert end <= self._sizes[name], f"{name}: {self._sizes[name]} bytes were asked for, not {end}"
        assert self._heap is not None, "`settle` comes first"
        return self._heap.view(rank, self._first_byte[name] + first * dtype.itemsize, shape, dtype)


@dataclass(frozen=True)
class BufferOffset:
    """Where a message lands, wherever it goes."""

    landings: SymmetricReceiveBuffers
    name: str
    first: int

    def at(self, peer: int, message: torch.Tensor) -> torch.Tensor:
        return self.landings.at(peer, self.name, self.first, message.shape, message.dtype)
