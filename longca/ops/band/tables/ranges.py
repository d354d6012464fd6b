"""Vectorised index arithmetic on tensors: expanded counts, positions of true entries, segments, prefix
sums."""

import torch
from torch import Tensor
from torch.nn import functional


def expand(count: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(n, rank): count[n] entries for each n, ranked from 0. `total` is their sum; with it, no
    synchronisation with the device is needed."""
    owner = torch.repeat_interleave(count, output_size=total)
    return owner, torch.arange(total, device=count.device) - (torch.cumsum(count, 0) - count)[owner]


def true_places(mask: Tensor, total: int) -> Tensor:
    """Indices of the `total` true entries: `nonzero` without synchronisation."""
    return torch.repeat_interleave(mask.long(), output_size=total)


def segments(breaks: Tensor) -> tuple[Tensor, Tensor]:
    """First and last entry of each segment of at least one entry; breaks[n] says that entry n + 1 begins
    one."""
    after = torch.nonzero(breaks).squeeze(1)
    return functional.pad(after + 1, (1, 0)), functional.pad(after, (0, 1), value=len(breaks))


def prefix_sums(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, … entries along the last axis."""
    return functional.pad(torch.cumsum(values, -1), (1, 0))
