"""Ulysses: an all-to-all from tokens to heads, attention over the whole sequence, and an all-to-all back
(arXiv 2309.14509).

Every rank runs the whole mask on its heads, so all masks are balanced. Tokens are in contiguous shards. There
are no divisibility requirements for lengths, heads and ranks: messages have uneven sizes, KV heads are sent
to every rank that needs them, and a rank without heads only takes part in the all-to-alls. Heads are
processed in chunks, so that most messages overlap with a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longca.cp.contract import HeadStrategy
from longca.cp.partition.heads import plan_heads
from longca.cp.schedule.work_partition import WorkPartition, partition_heads
from longca.lab.studies.cell import CallSpec, Cell

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm
    from longca.cp.partition.sharding import Sharding
    from longca.cp.runtime.prepared import PreparedHeads
    from longca.cp.schedule.head_chunking import ChunkWeights
    from longca.kernels.contract import Kernel, Problem
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits


class Ulysses(HeadStrategy):
    label = "Ulysses"
    summary = "All-to-all from tokens to heads and back; each rank runs the whole sequence on its heads"
    url = "https://arxiv.org/abs/2309.14509"

    def supports(self, cell: Cell, traits: Traits) -> str | None:
        return _unfit_heads(cell.call_spec, cell.world, traits)

    def local_calls(self, cell: Cell, traits: Traits) -> list[tuple[CallSpec, Traits]]:
        return _local_calls(cell.call_spec, cell.world, traits)

    def refusal_of(
        self, mask: Mask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> str | None:
        reasons = (
            kernel.supports(local, traits, device_type)
            for local, traits in _local_calls(call, world, mask.traits)
        )
        return _unfit_heads(call, world, mask.traits) or next(filter(None, reasons), None)

    def partition_call(
        self,
        mask: Mask,
        call: CallSpec,
        world: int,
        kernel: Kernel,
        device_type: str,
        weights: ChunkWeights | None = None,
        sharding: Sharding | None = None,
    ) -> WorkPartition:
        return partition_heads(mask, call, world, weights)  # shards are always contiguous

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedHeads:
        from longca.cp.runtime.prepared import PreparedHeads

        return PreparedHeads(problem, kernel, comm, work)


def _unfit_heads(call: CallSpec, world: int, traits: Traits) -> str | None:
    plan = plan_heads(call.num_q_heads, call.num_kv_heads, world)
    split = [rank for rank in range(world) if plan.mask_groups(rank, traits.num_groups) is None]
    if split:
        return (
            f"the mask differs among {traits.num_groups} head groups, and over {world} ranks the "
            f"heads of rank {split[0]} are no whole number of them"
        )
    return None


def _local_calls(call: CallSpec, world: int, traits: Traits) -> list[tuple[CallSpec, Traits]]:
    plan = plan_heads(call.num_q_heads, call.num_kv_heads, world)
    found: dict[tuple[int, int], int] = {}  # heads of a call → head groups of its mask
    for rank, share in enumerate(plan.ranks):
        groups = plan.mask_groups(rank, traits.num_groups)
        if share.q and groups is not None:
            found[len(share.q), len(share.local_kv)] = len(groups)
    return [
        (
            replace(call, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads),
            replace(traits, num_groups=num_groups),
        )
        for (num_q_heads, num_kv_heads), num_groups in found.items()
    ]
