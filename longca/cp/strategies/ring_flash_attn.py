"""The package ring-flash-attn: its ring for full attention, its zigzag ring for causal attention, its
all-gather (llama3) for documents.

It calls private functions of `flash_attn`: those of the package of that name (kernel `fa2`), or a shim over
torch's own copy (`torch_flash`). Its adapters for transformers, which need a specific version of
transformers, are not loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.cp.baselines.autograd import AutogradPrepared
from longca.cp.baselines.flash_attn_shim import KERNELS, NOTES, load, ring_buffer_bytes
from longca.cp.contract import Strategy, TokenShard
from longca.cp.partition.mesh import summing_ring_bytes
from longca.cp.partition.sharding import contiguous, zigzag
from longca.kernels import CallSizes, part_of

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm
    from longca.cp.contract import LocalCalls
    from longca.kernels import Kernel, Problem
    from longca.masks import LazyMask, Mask, Traits

PACKAGE = "ring_flash_attn"
FULL = (-1, -1)
CAUSAL = (-1, 0)
HEADS_AT_A_TIME = 1  # KV heads of one all-gather, which overlaps with the attention of the previous heads


class RingFlashAttn(Strategy):
    label = "ring-flash-attn"
    summary = (
        "The package: ring for full, zigzag ring for causal, gathers by head (llama3) inside "
        "documents and causal windows"
    )
    url = "https://github.com/zhuzilin/ring-flash-attention"
    needs = (PACKAGE,)
    kernels = KERNELS
    baseline = True

    def local_calls(self, traits: Traits, call: CallSpec, world: int) -> LocalCalls | str:
        if world == 1:
            return "its rings of one rank would send to themselves"
        if traits.per_head or traits.window is None or not (traits.window == FULL or traits.window[1] == 0):
            return (
                "it is for full and causal attention and causal windows, over the sequence or inside "
                "documents"
            )
        if _function(traits) == "ring" and call.direction == "bwd" and call.dtype != "bf16":
            return "its ring returns gradients of queries in bf16, whatever the inputs are in"
        parts = world * (2 if _function(traits) == "zigzag" else 1)
        if traits.seqlen_q % parts:
            return f"it pads nothing: {traits.seqlen_q} tokens are no {parts} equal parts"
        share = traits.seqlen_q // world
        return [(call, replace(traits, seqlen_q=share, seqlen_k=share))]

    def buffer_bytes(
        self, mask: Mask | LazyMask, call: CallSpec, world: int, kernel: Kernel, device_type: str
    ) -> int:
        """A ring holds `ring_buffer_bytes`. Inside documents: keys of one KV head and of the next from all
        ranks, outputs by head; backward, also their gradients, and the kernel's buffers for one KV head."""
        if _function(mask.traits) != "llama3":
            return ring_buffer_bytes(mask, call, world, kernel)
        share = replace(mask.traits, seqlen_q=mask.traits.seqlen_q // world)
        one = replace(call, num_q_heads=call.num_q_heads // call.num_kv_heads, num_kv_heads=1)
        sizes = CallSizes(one, share)
        if call.direction == "fwd":
            return 4 * sizes.keys + call.num_kv_heads * (sizes.queries + 2 * sizes.lse)
        return 8 * sizes.keys + kernel.buffer_bytes(one, part_of(mask, share))

    def prepare(self, problem: Problem, kernel: Kernel, comm: Comm) -> PreparedRingFlashAttn:
        return PreparedRingFlashAttn(problem, kernel.name, comm)


def _function(traits: Traits) -> str:
    if traits.num_segments == 1 and traits.window in (FULL, CAUSAL):
        return "ring" if traits.window == FULL else "zigzag"
    return "llama3"


class PreparedRingFlashAttn(AutogradPrepared):
    def __init__(self, problem: Problem, kernel: str, comm: Comm) -> None:
        function = _function(problem.mask.traits)
        sharding = (zigzag if function == "zigzag" else contiguous)(problem.mask.seqlen_q, comm.world)
        super().__init__(problem, TokenShard(sharding.positions(comm.rank)))
        self._batched = function != "llama3"
        if self._batched:
            module = f"{function}_ring_flash_attn" if function == "zigzag" else "ring_flash_attn"
            self._function: Any = getattr(load(PACKAGE, kernel)(module), f"{module}_func")
            self._options: dict[str, Any] = {"causal": function == "zigzag"}
        else:
            self._prepare_llama3(problem, load(PACKAGE, kernel)("llama3_flash_attn_varlen"), comm)
        self._options["softmax_scale"] = problem.scale
        self.costs["formula_bytes"] = self._formula_bytes(comm.world)
        self.notes.append(f"its {function} function")
        self.notes += NOTES[kernel]

    def _prepare_llama3(self, problem: Problem, module: Any, comm: Comm) -> None:
        import torch

        from longca.lowering.varlen import varlen

        packed = varlen(problem.mask)
        causal = packed.window[1] == 0
        bounds = torch.from_numpy(packed.cu_seqlens).to(problem.device)
        prepared = module.llama3_flash_attn_prepare_cu_seqlens(
            bounds, causal=causal, rank=comm.rank, world_size=comm.world
        )
        names = "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice"
        self._function = module.llama3_flash_attn_varlen_func
        self._options = {
            **dict(zip(names, prepared, strict=True)),
            "heads_k_stride": HEADS_AT_A_TIME,
            "causal": causal,
            "window_size": (packed.window[0], 0) if packed.window[0] >= 0 else FULL,
        }

    def _formula_bytes(self, world: int) -> float:
        problem = self.problem
        keys = problem.mask.seqlen_k / world * problem.num_kv_heads * problem.head_dim
        if self._batched:
            return summing_ring_bytes(problem, world, keys)
        gathers = 2 if problem.needs_backward else 1  # of keys and values, or one plus a reduce-scatter
        return gathers * 2 * keys * (world - 1) * problem.dtype.itemsize

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not self._batched:
            return self._function(q, k, v, **self._options)
        return self._function(*(x.unsqueeze(0) for x in (q, k, v)), **self._options).squeeze(0)
