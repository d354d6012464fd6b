"""FlexAttention under torch's own context parallelism: an all-gather of all keys, then one compiled call on a
part of the queries.

torch builds the block mask of each rank from the mask_mod. Its balancer for block masks (PTRR) assigns blocks
of 128 tokens to ranks by their number of visible key blocks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.cp.baselines.autograd import AutogradPrepared
from longca.cp.contract import Strategy, TokenShard
from longca.kernels import CallSizes, part_of

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

BLOCK = 128  # of torch's block masks


class TorchFlexCp(Strategy):
    label = "torch FlexAttention CP"
    summary = (
        "torch's context parallelism for FlexAttention: two exposed gathers of all keys, any mask, "
        "blocks of 128 dealt by PTRR"
    )
    url = "https://docs.pytorch.org/docs/stable/distributed.tensor.html"
    kernels = ("flex",)
    baseline = True

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if traits.seqlen_q % (world * BLOCK):
            return (
                f"torch divides sequences of whole blocks of {BLOCK} for each rank: {traits.seqlen_q} "
                f"tokens are none over {world}"
            )
        if traits.per_head:
            return "torch's balancer takes one mask for all heads"
        return [(call, replace(traits, seqlen_q=traits.seqlen_q // world))]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """All keys; backward, gradients of all keys, and the gradient of the output in the kernel's
        layout."""
        traits = replace(mask.traits, seqlen_q=mask.traits.seqlen_q // world)
        sizes = CallSizes(call, traits)
        of_kernel = kernel.buffer_bytes(call, part_of(mask, traits))
        if call.direction == "fwd":
            return 2 * sizes.keys + of_kernel
        own = 2 * sizes.keys // world  # dK and dV come after that
        return 4 * sizes.keys + sizes.queries + of_kernel - own

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedTorchFlexCp:
        return PreparedTorchFlexCp(problem, comm)


class PreparedTorchFlexCp(AutogradPrepared):
    def __init__(self, problem: Problem, comm: Comm) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor.experimental._context_parallel._attention import (
            _ContextParallel,
            _create_cp_block_mask,
        )
        from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PTRRLoadBalancer
        from torch.nn.attention.flex_attention import flex_attention

        from longca.lowering.flex import block_mask, mask_mod

        assert dist.group.WORLD is not None
        mask = problem.mask
        device = problem.device
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
        balancer = _PTRRLoadBalancer(block_mask(mask, device), comm.world)
        super().__init__(
            problem,
            TokenShard(
                balancer._generate_indices()[0].chunk(comm.world)[comm.rank].cpu().numpy().astype("int64")
            ),
        )
        # torch stops compiling a function after a few variants: those of earlier problems must not count
        torch._dynamo.reset()
        start = time.perf_counter()
        local = _create_cp_block_mask(
            mask_mod(mask, device, problem.num_q_heads),
            1,
            1,
            mask.seqlen_q,
            mask.seqlen_k,
            self._mesh,
            balancer,
        )
        self._options = {
            "block_mask": local,
            "scale": problem.scale,
            "enable_gqa": problem.num_kv_heads < problem.num_q_heads,
        }
        self._gather = _ContextParallel(
            seq_dim=2, attention_type=_ContextParallel.AttentionType.FLEX
        ).flex_input_fn
        self._attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        self._first_call()
        self.costs["compile_ms"] = (time.perf_counter() - start) * 1e3
        keys = mask.seqlen_k / comm.world * problem.num_kv_heads * problem.head_dim * problem.dtype.itemsize
        # a gather forward, a reduce-scatter backward
        self.costs["formula_bytes"] = 2 * keys * (comm.world - 1)
        self.notes.append(
            "compile_ms is of the attention and of torch's making of the block mask, which it compiles for "
            "each mask"
        )

    def _first_call(self) -> None:
        import torch

        problem = self.problem
        num_tokens = len(self.shard.positions_L)
        q, k = (
            torch.zeros(num_tokens, num_heads, problem.head_dim, dtype=problem.dtype, device=problem.device)
            for num_heads in (problem.num_q_heads, problem.num_kv_heads)
        )
        forward = self.forward(q, k, k)
        if problem.needs_backward:
            self.backward(forward, q)
        if problem.device.type == "cuda":
            torch.cuda.synchronize(problem.device)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # to 1 × heads × L × D
        (q, k, v), _ = self._gather(None, (q, k, v), {}, self._mesh)
        return self._attend(q, k, v, **self._options).squeeze(0).transpose(0, 1)
