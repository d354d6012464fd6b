"""Entries in a row, without loops: as many as counts say, those that are chosen, and stretches of those that belong together."""

import torch
from torch import Tensor
from torch.nn import functional


def spread(count: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(n, rank): count[n] entries for each n, ranked from 0. `total` is their sum: given, nothing has to wait for the device."""
    owner = torch.repeat_interleave(count, output_size=total)
    return owner, torch.arange(total, device=count.device) - (torch.cumsum(count, 0) - count)[owner]


def chosen(which: Tensor, total: int) -> Tensor:
    """Places of the `total` true ones: `nonzero` that does not wait for the device."""
    return torch.repeat_interleave(which.long(), output_size=total)


def stretches(breaks: Tensor) -> tuple[Tensor, Tensor]:
    """First and last entry of each stretch of at least one entry; breaks[n] says that entry n + 1 begins one."""
    behind = torch.nonzero(breaks).squeeze(1)
    return functional.pad(behind + 1, (1, 0)), functional.pad(behind, (0, 1), value=len(breaks))


def upto(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, … entries along the last axis."""
    return functional.pad(torch.cumsum(values, -1), (1, 0))
