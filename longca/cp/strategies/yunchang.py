"""The package yunchang (USP): neighbours split heads by all-to-alls, and keys circulate in a ring of such
groups.

It calls functions of `flash_attn`: those of the package of that name (kernel `fa2`), or a shim over torch's
own copy (`torch_flash`). Its other local kernels are excluded: its call of torch's attention has no backward,
and its call of FlashAttention-3 drops the causal mask.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.cp.baselines.autograd import AutogradPrepared
from longca.cp.baselines.flash_attn_shim import KERNELS, NOTES, load, ring_buffer_bytes
from longca.cp.contract import Strategy, TokenShard
from longca.cp.partition.mesh import Mesh, summing_ring_bytes
from longca.cp.partition.sharding import contiguous, zigzag
from longca.kernels import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

PACKAGE = "yunchang"


class Yunchang(Strategy):
    label = "yunchang (USP)"
    summary = "The package: Ulysses among neighbours, a ring of them (zigzag for causal); full and causal"
    url = "https://github.com/feifeibear/long-context-attention"
    needs = (PACKAGE,)
    kernels = KERNELS
    baseline = True

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if world == 1:
            return "its ring of one rank would send to itself"
        if not (traits.full or traits.causal):
            return "it is for full and causal attention over the sequence: it takes no mask"
        if call.dtype != "bf16":
            return "its ring returns gradients in bf16, whatever the inputs are in"
        mesh = _mesh(world, call.num_kv_heads)
        parts = world if traits.full else math.lcm(world, 2 * mesh.ring)
        if traits.seqlen_q % parts:
            return f"it pads nothing: {traits.seqlen_q} tokens are no {parts} equal parts"
        share = traits.seqlen_q // mesh.ring
        local = replace(
            call, num_q_heads=call.num_q_heads // mesh.heads, num_kv_heads=call.num_kv_heads // mesh.heads
        )
        return [(local, replace(traits, seqlen_q=share, seqlen_k=share, num_groups=1))]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """The buffers of its ring; Q, K and V after the all-to-alls; backward, also the output there, and it
        once more beside the ring's."""
        mesh = _mesh(world, call.num_kv_heads)
        local = replace(
            call, num_q_heads=call.num_q_heads // mesh.heads, num_kv_heads=call.num_kv_heads // mesh.heads
        )
        share = mask.traits.seqlen_q // mesh.ring
        sizes = CallSizes(local, replace(mask.traits, seqlen_q=share, seqlen_k=share))
        received = sizes.queries + 2 * sizes.keys if mesh.heads > 1 else 0
        if call.direction == "bwd":
            received += sizes.queries * (2 if mesh.heads > 1 else 1)
        return ring_buffer_bytes(mask, local, mesh.ring, kernel) + received

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedYunchang:
        return PreparedYunchang(problem, kernel.name, comm)


def _mesh(world: int, num_kv_heads: int) -> Mesh:
    """The mesh: the largest head groups that divide the KV heads evenly and leave a ring of two or more."""
    heads = max(degree for degree in range(1, world) if world % degree == 0 and num_kv_heads % degree == 0)
    return Mesh(world // heads, heads)


class PreparedYunchang(AutogradPrepared):
    def __init__(self, problem: Problem, kernel: str, comm: Comm) -> None:
        mesh = _mesh(comm.world, problem.num_kv_heads)
        causal = not problem.mask.traits.full
        sharding = (zigzag if causal else contiguous)(problem.mask.seqlen_q, mesh.ring)
        super().__init__(problem, TokenShard(mesh.positions(sharding, comm.rank)))
        module = load(PACKAGE, kernel)
        _make_groups(module("globals"), mesh, comm)
        attention_type = module("kernels").AttnType.FA
        self._attention = module("hybrid").LongContextAttention(
            ring_impl_type="zigzag" if causal else "basic", attn_type=attention_type
        )
        self._options = {"causal": causal, "softmax_scale": problem.scale}
        self.costs["formula_bytes"] = _formula_bytes(problem, mesh)
        self.notes += (
            f"a ring of {mesh.ring} groups of {mesh.heads} ranks that divide heads",
            *NOTES[kernel],
        )

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self._attention(*(x.unsqueeze(0) for x in (q, k, v)), **self._options).squeeze(0)


def _make_groups(package: Any, mesh: Mesh, comm: Comm) -> None:
    """Creates the package's process-wide process groups, unless they exist for this mesh."""
    import torch.distributed as dist

    groups = package.PROCESS_GROUP
    if groups.RING_PG is None or dist.get_world_size(groups.RING_PG) != mesh.ring:
        package.set_seq_parallel_pg(mesh.heads, mesh.ring, comm.rank, comm.world)


def _formula_bytes(problem: Problem, mesh: Mesh) -> float:
    """Bytes of q, k, v and the output in the all-to-alls, of K and V in the ring, and backward of their
    gradients in float32."""
    tokens = problem.mask.seqlen_q / mesh.world * problem.head_dim
    divided = (
        2
        * (problem.num_q_heads + problem.num_kv_heads)
        * (mesh.heads - 1)
        / mesh.heads
        * problem.dtype.itemsize
    )
    return tokens * divided + summing_ring_bytes(problem, mesh.ring, tokens * problem.num_kv_heads)
