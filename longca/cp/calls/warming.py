"""Compilation of all code that the calls of a context can need, before its first call.

Triton keeps what it compiles in a folder of the machine, so the first rank of each machine compiles, and then
the others find it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.cp.calls.ranks import all_or_none
from longca.cp.partition.mesh import plan_heads, split_heads
from longca.cp.schedule.work_partition import CANDIDATE_WEIGHTS, PARTS_OF_KV_HEAD

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.calls.request import CpRequest
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import HeadStrategy
    from longca.kernels import Kernel
    from longca.masks import Mask


def warm_kernel(
    comm: Comm,
    request: CpRequest,
    kernel: Kernel,
    strategies: Sequence[HeadStrategy],
    masks: Sequence[Mask],
    ranks_per_node: int,
) -> int:
    """Compiles what calls under any mask can need, by any of these strategies. A collective call. Returns the
    number of builds."""
    calls = list(dict.fromkeys(local_calls(strategies, request.call_spec(masks[0]), comm.world)))

    def compiled(mine: bool) -> int:
        return all_or_none(comm, lambda: kernel.warm(calls, request.device, masks) if mine else 0)

    is_first = comm.rank % ranks_per_node == 0
    return compiled(is_first) + compiled(not is_first)


def local_calls(
    strategies: Sequence[HeadStrategy], call: CallSpec, world: int
) -> Iterator[tuple[CallSpec, bool]]:
    """(kernel call of a rank, True if it may cover only a part of the keys), for every mask and division of
    heads. Some may be equal."""
    for strategy in strategies:
        try:
            mesh = strategy.mesh(world, call.num_kv_heads)
        except ValueError:  # it refuses every mask
            continue
        in_parts = mesh.ring > 1
        if mesh.heads == 1:
            yield call, in_parts
            continue
        heads = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads)
        for weights in CANDIDATE_WEIGHTS:
            for parts in PARTS_OF_KV_HEAD:
                for chunk in split_heads(heads, weights, 1, parts) or ():
                    for share in chunk.heads.ranks:
                        if share.q:
                            yield (
                                replace(call, num_q_heads=len(share.q), num_kv_heads=len(share.local_kv)),
                                in_parts,
                            )
