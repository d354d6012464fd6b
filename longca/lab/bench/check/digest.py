"""An additive digest of a tensor's content: each rank digests its own rows, and the sum is the digest of the
whole tensor.

It is a sum of the tensor's bits, weighted by position, modulo 2⁶⁴. It detects changes of inputs by a kernel.
It does not protect against deliberately constructed changes, which is unnecessary, since references use other
copies.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch

from longca.masks import Mask

ELEMENTS = 1 << 22  # at a time: bounds the memory of their 64-bit form
_ODD = 0x9E3779B97F4A7C15
_SPREAD = 0xBF58476D1CE4E5B9
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def content_digest(x_LHD: torch.Tensor, positions_L: torch.Tensor | None = None) -> int:
    """The digest of rows of a tensor.

    Args:
        positions_L: the number of each row in the whole tensor; 0, 1, … if not given.
    """
    if positions_L is None:
        positions_L = torch.arange(len(x_LHD), device=x_LHD.device)
    row_weights = _weights(positions_L + 1)
    step = max(ELEMENTS // max(x_LHD[:1].numel(), 1), 1)
    total = torch.zeros((), dtype=torch.int64, device=x_LHD.device)
    columns = _column_weights(x_LHD[:1].numel(), x_LHD.device)
    for start in range(0, len(x_LHD), step):
        bits = (
            x_LHD[start : start + step]
            .detach()
            .contiguous()
            .view(_BITS[x_LHD.element_size()])
            .flatten(1)
            .long()
        )
        total += ((bits * columns).sum(1) * row_weights[start : start + step]).sum()
    return int(total) % (1 << 64)


def mask_digest(mask: Mask) -> int:
    """A digest of what a mask holds now, derived anew: a kernel may have written to its arrays, or to what it
    has derived from them."""
    content = hashlib.sha256(f"{Mask.digest.func(mask)} {mask.area} {mask.traits}".encode())
    for name, value in sorted(mask.params.items()):
        held = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else None
        content.update(f"{name} {value if held is None else (held.shape, held.dtype)}".encode())
        content.update(b"" if held is None else held.tobytes())
    return int.from_bytes(content.digest()[:8], "big")


@functools.lru_cache(maxsize=8)
def _column_weights(number: int, device: torch.device) -> torch.Tensor:
    return _weights(torch.arange(number, device=device) + (1 << 32))


def _weights(numbers: torch.Tensor) -> torch.Tensor:
    """A pseudo-random odd number for each number; products of int64 wrap around."""
    mixed = numbers.long() * _signed(_ODD)
    mixed = (mixed ^ (mixed >> 31)) * _signed(_SPREAD)
    return mixed ^ (mixed >> 27) | 1


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
