"""cuDNN's FlexAttention: kernels for masks of row intervals, from the cuDNN frontend's CuTe operators."""

# cuDNN's front end need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_modules, unfit_device
from longca.kernels.first_call import first_call_ms
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

MAX_TABLE_BYTES = 1 << 30
TILE = 128  # tokens of a tile, both ways, with a bit for each pair where it is partial
PLANS_OF_BACKWARD = 1.5  # of records on an H200: the plan of both directions over that of one


class CudnnFlex(Kernel):
    label = "cuDNN FlexAttention"
    family = "both"
    summary = (
        "cudnn.flex_attention of the cuDNN frontend (experimental): any mask as intervals of keys for "
        "each query"
    )
    url = "https://github.com/NVIDIA/cudnn-frontend"
    needs = ("torch", "cudnn.flex_attention", "cutlass", "tvm_ffi")
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, "sm_90", "sm_100", "sm_103") or missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "takes bf16 and fp16 only"
        if call.head_dim % 8 or call.head_dim > 128:
            return "takes head dims up to 128 in steps of 8"
        num_heads = call.num_q_heads if traits.per_head else 1
        table_bytes = 4 * num_heads * (2 * traits.max_row_intervals + 1) * traits.seqlen_q
        if table_bytes > MAX_TABLE_BYTES:
            return (
                f"a row sees up to {traits.max_row_intervals} runs of keys: the table of intervals would "
                f"take {table_bytes / (1 << 30):.1f} GiB"
            )
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """The plan's bits of partial tiles of a block mask; those of bands are few. Backward: two more
        statistics of rows, dQ in float32, and dK and dV in float32 if heads share keys."""
        sizes = CallSizes(call, mask.traits)
        tiles = _partial_tiles(sizes) * (PLANS_OF_BACKWARD if sizes.is_backward else 1)
        own = sizes.lse + (sizes.flash_sums() if sizes.is_backward else 0)
        return own + round(TILE * TILE / 8 * tiles)

    def prepare(self, problem: Problem) -> CudnnFlexPrepared:
        return CudnnFlexPrepared(problem)


def _partial_tiles(sizes: CallSizes) -> float:
    """Tiles of all heads that independent blocks of a mask of blocks cover in part, as expected by chance."""
    traits = sizes.traits
    if not traits.is_block_grid:
        return 0.0
    apart = []  # for each side, the chance of blocks in a tile: {number of blocks: chance}
    for seqlen, blocks in zip((traits.seqlen_q, traits.seqlen_k), sizes.num_blocks(), strict=True):
        block = max(seqlen / blocks, 1.0)
        if traits.block_size is not None:
            apart.append({max(TILE // round(block), 1): 1.0})
        else:  # edges at any position
            apart.append({1: max(1 - TILE / block, 0.0), max(TILE / block, 2.0): min(TILE / block, 1.0)})
    share = sizes.density
    partial = sum(
        chance_q * chance_k * (1 - share ** (num_q * num_k) - (1 - share) ** (num_q * num_k))
        for num_q, chance_q in apart[0].items()
        for num_k, chance_k in apart[1].items()
        if num_q * num_k > 1
    )
    num_heads = sizes.call.num_q_heads if traits.per_head else 1
    return num_heads * -(-traits.seqlen_q // TILE) * -(-traits.seqlen_k // TILE) * partial


class CudnnFlexPrepared(Prepared):
    """Layout (1, T, heads, D); LSE (1, H, T).

    Args:
        deterministic: gradients are summed in a fixed order.
    """

    def __init__(self, problem: Problem, *, deterministic: bool = False) -> None:
        super().__init__(problem)
        self._order: dict[str, bool] = {"deterministic": True} if deterministic else {}
        import torch

        from longca.lowering import cudnn_row_intervals

        start = time.perf_counter()
        table = (
            torch.from_numpy(cudnn_row_intervals(problem.mask, problem.num_q_heads))
            .to(problem.device)
            .contiguous()
        )
        lowering_ms = (time.perf_counter() - start) * 1e3
        q, k = (
            torch.zeros(
                1, num_tokens, num_heads, problem.head_dim, dtype=problem.dtype, device=problem.device
            )
            for num_tokens, num_heads in (
                (problem.mask.seqlen_q, problem.num_q_heads),
                (problem.mask.seqlen_k, problem.num_kv_heads),
            )
        )
        # also compiles the planner's kernels, unless they are compiled already
        first_ms = plan_ms = self._plan(table, q, k)
        if problem.records_costs:
            plan_ms = self._plan(table, q, k)
            self.costs["compile_ms"] = first_call_ms(self) + max(first_ms - plan_ms, 0.0)
        self.costs["metadata_bytes"] = self._plan_bytes()
        self.costs["plan_ms"] = lowering_ms + plan_ms

    def _plan(self, table: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> float:
        """Make the plan and return the time that it took, in ms."""
        import torch
        from cudnn.flex_attention import create_mask_plan

        torch.cuda.synchronize(q.device)
        start = time.perf_counter()
        self._mask_plan = create_mask_plan(table, q, k, k, build_backward=self.problem.needs_backward)
        torch.cuda.synchronize(q.device)
        return (time.perf_counter() - start) * 1e3

    def _plan_bytes(self) -> int:
        """Bytes of the plan's tensors that the kernels read, each counted once."""
        from cudnn.flex_attention.execution import _plan_tensors

        storages = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for x in _plan_tensors(self._mask_plan, **self._order)
        }
        return sum(storages.values())

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.contiguous().unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.squeeze(0).transpose(0, 1)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous().unsqueeze(0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        # the operators that `flex_attn_func` calls, without autograd
        from cudnn.flex_attention.execution import _flex_attention_forward

        out, lse, _ = _flex_attention_forward(
            q, k, v, mask_plan=self._mask_plan, softmax_scale=self.problem.scale, return_lse=True
        )
        return Forward(out, lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and LSE that may cover more keys than these.

        Args:
            lse: (1, H, T) float32, natural log.
        """
        from cudnn.flex_attention.execution import _flex_attention_backward

        dq, dk, dv = _flex_attention_backward(
            q,
            k,
            v,
            out,
            dout,
            lse,
            mask_plan=self._mask_plan,
            softmax_scale=self.problem.scale,
            **self._order,
        )
        return dq, dk, dv
