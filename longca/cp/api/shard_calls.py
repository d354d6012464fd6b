"""The calls of `shard` on one rank. They send nothing, so the next header describes them to the other
ranks.

Every rank gives `shard` the whole of the same tensor. A rank that has left out a step, or draws its data
with another seed, gives another one. A few elements show that for tensors in the host's memory; to read
those of a GPU would make the host wait.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


MAX_KEPT = 4  # of the last calls between two headers
MAX_TEXT = 200
NUM_ELEMENTS = 8
LARGEST_DIFFERENCE = 0.1
"""of two samples of floats, relative to the larger one: rounding is less, another batch is more"""

Difference = tuple[str, str, str]
"""what, why and what to do, as of a UserError"""


class ShardCalls:
    """The calls of `shard` since the last header."""

    def __init__(self, reads_devices: bool) -> None:
        """
        Args:
            reads_devices: elements of tensors on a GPU are compared as well, for which the host waits.
        """
        self._reads_devices = reads_devices
        self._count = 0
        self._failure = ""
        self._last: list[tuple[str, list[Any] | None]] = []

    def add(self, x: torch.Tensor, dim: int) -> None:
        """Notes a call that this rank has done."""
        shape = " × ".join(map(str, x.shape))
        is_read = x.device.type == "cpu" or (self._reads_devices and x.device.type != "meta")
        self._count += 1
        self._last = [
            *self._last[1 - MAX_KEPT :],
            (
                f"{x.dtype} {shape} along dimension {dim % x.dim()}"[:MAX_TEXT],
                _elements(x) if is_read else None,
            ),
        ]

    def add_failure(self, error: Exception) -> None:
        """Notes a call that this rank could not do."""
        self._count += 1
        self._failure = " ".join(str(error).split())[:MAX_TEXT]

    def taken(self) -> str:
        """The calls as text for a header: empty without any. They are forgotten."""
        if not self._count:
            return ""
        text = json.dumps([self._count, self._last, self._failure], ensure_ascii=False)
        self._count = 0
        self._last = []
        self._failure = ""
        return text


def difference_of_shards(shards: Sequence[str]) -> Difference | None:
    """The first difference between ranks in what they have given `shard`; None where there is none.

    Args:
        shards: by rank, those of a header.
    """
    if all(text == shards[0] for text in shards):
        return None
    calls = [json.loads(text) if text else [0, [], ""] for text in shards]
    for rank, (_, _, failure) in enumerate(calls):
        if failure and any(other != failure for _, _, other in calls):
            return (
                f"Rank {rank} could not do its last call of shard",
                failure.rstrip("."),
                "Give every rank the same whole tensor",
            )
    counts = [count for count, _, _ in calls]
    if 0 in counts:  # one rank alone may look at its tokens, and a compiled call is not noted
        return None
    for rank, (count, last, _) in enumerate(calls):
        if count != counts[0]:
            return (
                "Ranks call shard unequally often between two calls that send messages",
                f"rank 0 has called it {_times(counts[0])}, rank {rank} {_times(count)}",
                "Call it on every rank alike; x[cp.positions] takes this rank's tokens at any time",
            )
        for (title, elements), (other, others) in zip(calls[0][1], last, strict=False):
            if title != other:
                return (
                    "Argument 'x' of shard differs between ranks",
                    f"rank 0 has {title}, rank {rank} has {other}",
                    "Give every rank the same whole tensor",
                )
            if not _alike(elements, others):
                return (
                    f"Argument 'x' of shard, {title}, has other content on rank {rank} than on rank 0",
                    "a rank has left out a step, or its data are drawn by another seed",
                    "Give every rank the same whole tensor",
                )
    return None


def _elements(x: torch.Tensor) -> list[Any] | None:
    """Some elements of the tensor, evenly apart; None where they are no plain numbers."""
    import torch

    if not x.numel() or x.is_complex() or x.is_quantized or x.layout is not torch.strided:
        return None
    step = max(1, x.numel() // NUM_ELEMENTS)
    places = torch.unravel_index(torch.arange(step - 1, x.numel(), step, device=x.device), x.shape)
    return x.detach()[places].to(torch.float64 if x.is_floating_point() else torch.int64).tolist()


def _alike(mine: list[Any] | None, other: list[Any] | None) -> bool:
    if mine is None or other is None or mine == other:
        return True
    if not any(isinstance(x, float) for x in (*mine, *other)):
        return False
    pairs = [(a, b) for a, b in zip(mine, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    distance = math.sqrt(sum((a - b) ** 2 for a, b in pairs))
    norm = max(math.sqrt(sum(a * a for a, _ in pairs)), math.sqrt(sum(b * b for _, b in pairs)))
    return distance <= LARGEST_DIFFERENCE * norm


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
