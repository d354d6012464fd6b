"""Copies host tensors to a GPU so that nothing waits for the GPU's other work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes: as torch's own allocations have it


def on_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same tensors on a device, contiguous; those that are there already as they are.

    Those of the host go as one copy out of page-locked memory, and lie in one allocation. From other memory
    CUDA lets the host wait until the stream has done all that it was given before: in a training loop, a step
    for each table.

    Args:
        tensors: on the host or on the device. One that is given several times is copied once.
    """
    todo = list({id(x): x for x in tensors if x.device.type != device.type}.values())
    if not todo:
        return list(tensors)
    packed, offsets = pack(todo, pinned=device.type == "cuda")
    moved = dict(zip(map(id, todo), unpack(packed.to(device, non_blocking=True), todo, offsets), strict=True))
    return [moved.get(id(x), x) for x in tensors]


def pack(tensors: Sequence[Tensor], *, pinned: bool = False) -> tuple[Tensor, list[int]]:
    """(bytes of all tensors in one host tensor, where each begins)"""
    offsets = list[int]()
    size = 0
    for x in tensors:
        offsets.append(size)
        size += -(-x.nbytes // ALIGNMENT) * ALIGNMENT
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for x, target in zip(tensors, unpack(packed, tensors, offsets), strict=True):
        target.copy_(x)
    return packed, offsets


def unpack(packed: Tensor, like: Sequence[Tensor], offsets: Sequence[int]) -> list[Tensor]:
    """Views of packed bytes, with the shapes and dtypes of the tensors that they are of."""
    return [
        packed[start : start + x.nbytes].view(x.dtype).view(x.shape)
        for x, start in zip(like, offsets, strict=True)
    ]
