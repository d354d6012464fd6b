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

from longca.core import CallSpec
from longca.cp.contract import HeadStrategy
from longca.cp.partition.mesh import Mesh, plan_heads
from longca.cp.schedule.memory import buffer_bytes
from longca.cp.schedule.work_partition import WorkPartition, partition_heads
from longca.masks import whole_mask

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.cp.partition.mesh import ChunkWeights
    from longca.cp.partition.sharding import Sharding
    from longca.cp.runtime.head_pipeline import PreparedHeads
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits


class Ulysses(HeadStrategy):
    label = "Ulysses"
    summary = "All-to-all from tokens to heads and back; each rank runs the whole sequence on its heads"
    url = "https://arxiv.org/abs/2309.14509"

    def mesh(self, world: int, num_kv_heads: int) -> Mesh:
        return Mesh(1, world)

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        plan = plan_heads(call.num_q_heads, call.num_kv_heads, world)
        heads: dict[tuple[int, int], int] = {}  # heads of a call → head groups of its mask
        for rank, share in enumerate(plan.ranks):
            groups = plan.mask_groups(rank, traits.num_groups)
            if groups is None:
                return (
                    f"the mask differs among {traits.num_groups} head groups, and over {world} ranks the "
                    f"heads of rank {rank} are no whole number of them"
                )
            if share.q:
                heads[len(share.q), len(share.local_kv)] = len(groups)
        return [
            (
                replace(call, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads),
                replace(traits, num_groups=num_groups),
            )
            for (num_q_heads, num_kv_heads), num_groups in heads.items()
        ]

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

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        return buffer_bytes(
            self.partition_call(whole_mask(mask), call, world, kernel, device_type), call, kernel
        )

    def prepare_work(
        self, problem: Problem, kernel: Kernel, comm: Comm, work: WorkPartition, planning_ms: float
    ) -> PreparedHeads:
        from longca.cp.runtime.head_pipeline import PreparedHeads

        return PreparedHeads(problem, kernel, comm, work)
