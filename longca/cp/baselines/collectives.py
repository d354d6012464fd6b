"""Collectives for schedules of other projects, in addition to `Comm.all_to_all`; their bytes are counted in
the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from longca.cp.comm.process_group import as_peer_lost

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm


def ring_shift(comm: Comm, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Sends x to the next rank and receives a tensor of the same size from the previous rank.

    Returns: A function that waits and returns the received tensor, of x's shape. Two shifts in flight must be
        awaited in order. On a GPU the current stream waits, not the host.
    """
    import torch
    import torch.distributed as dist

    received = torch.empty_like(x)
    comm.moved_bytes += x.nbytes if comm.world > 1 else 0
    sizes = [[0] * comm.world, [0] * comm.world]
    sizes[0][(comm.rank - 1) % comm.world] = sizes[1][(comm.rank + 1) % comm.world] = x.numel()
    with as_peer_lost():
        work = dist.all_to_all_single(received.view(-1), x.contiguous().view(-1), *sizes, async_op=True)

    def arrived() -> torch.Tensor:
        assert work is not None
        with as_peer_lost():
            work.wait()
        return received

    return arrived


def all_gather(comm: Comm, mine: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, of one shape, as (world, …) by rank."""
    import torch.distributed as dist

    gathered = mine.new_empty(comm.world, *mine.shape)
    comm.moved_bytes += (comm.world - 1) * mine.nbytes
    # its name up to torch 2.11
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    with as_peer_lost():
        gather(gathered.view(-1), mine.contiguous().view(-1))
    return gathered


def reduce_scatter(comm: Comm, parts: torch.Tensor) -> torch.Tensor:
    """Parts for all ranks, (world, …) → the sum over ranks of the parts for this rank, accumulated in their
    dtype by the backend."""
    import torch.distributed as dist

    total = parts.new_empty(parts.shape[1:])
    comm.moved_bytes += (comm.world - 1) * total.nbytes
    # its name up to torch 2.11
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    with as_peer_lost():
        scatter(total.view(-1), parts.contiguous().view(-1))
    return total
