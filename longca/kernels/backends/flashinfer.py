"""FlashInfer's variable-block wrapper: blocks of any sizes for each KV head, planned as pages of one
token."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_modules
from longca.kernels.sizes import INDEX_BYTES, CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

FLOAT_WORKSPACE_BYTES = 128 << 20  # as its documentation recommends
LEAST_INT_WORKSPACE_BYTES = 8 << 20  # the wrapper's default
# its planners store seven int32 for each tile of queries; the rest allows for rounding up
BYTES_PER_WORK_ITEM = 64
MOST_INDICES = (1 << 31) - 1
TOO_MANY = "it plans an index for each key of each q-block, in 32 bits: {} do not fit"


class FlashInfer(Kernel):
    label = "FlashInfer"
    family = "sparse"
    needs = ("torch", "flashinfer", "einops")
    summary = (
        "VariableBlockSparseAttentionWrapper: uniform and variable blocks for each KV head, forward only"
    )
    url = "https://docs.flashinfer.ai/api/sparse.html"
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        return "it runs on NVIDIA GPUs only" if device_type != "cuda" else missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if not traits.is_block_grid:
            return "it takes block masks only"
        if call.direction == "bwd":
            return "FlashInfer has no backward: it is made for inference"
        if call.dtype != "bf16" or call.head_dim != 128:
            return "this build has head dim 128 in bf16 only"
        if traits.block_size is not None:
            num_indices = traits.area // traits.block_size[0] * (call.num_kv_heads // traits.num_groups)
            if num_indices > MOST_INDICES:
                return TOO_MANY.format(num_indices)
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """The workspaces, an index for each visible key of each q-block, and for GQA the rearranged q and
        out."""
        sizes = CallSizes(call, mask.traits)
        blocks, _ = sizes.num_blocks()
        num_indices = round(call.num_kv_heads * blocks * sizes.density * mask.traits.seqlen_k)
        lists = call.num_kv_heads * blocks
        work = _int_workspace_bytes(lists, mask.traits.seqlen_q, call.num_q_heads, call.num_kv_heads)
        rearranged = 2 * sizes.queries if sizes.shares_heads else 0
        return sizes.lse + FLOAT_WORKSPACE_BYTES + work + INDEX_BYTES * num_indices + rearranged

    def prepare(self, problem: Problem) -> FlashInferPrepared:
        return FlashInferPrepared(problem)


def _int_workspace_bytes(num_lists: int, num_queries: int, num_q_heads: int, num_kv_heads: int) -> int:
    """Bytes for the plan of that many block rows of all KV heads."""
    ratio = num_q_heads // num_kv_heads
    items = (num_lists + -(-num_queries * num_q_heads // 64)) * ratio
    return max(LEAST_INT_WORKSPACE_BYTES, items * BYTES_PER_WORK_ITEM)


class FlashInferPrepared(Prepared):
    """Layout (heads, T, D). The wrapper rearranges q and out for GQA inside its call, so this is timed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import torch

        hopper = torch.cuda.get_device_capability(problem.device) == (9, 0)
        self._backend = "fa3" if hopper else "fa2"
        self.notes.append(f"backend {self._backend}")
        if problem.num_kv_heads < problem.num_q_heads:
            self.notes.append("the wrapper rearranges q and out for GQA inside the timed call")
        start = time.perf_counter()
        self._load(problem)
        self.costs["compile_ms"] = (time.perf_counter() - start) * 1e3
        start = time.perf_counter()
        self._plan(problem)
        torch.cuda.synchronize(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3

    def _load(self, problem: Problem) -> None:
        """Load or compile the kernels by planning a single block."""
        import torch

        ones = torch.ones(1, 1, dtype=torch.int32, device=problem.device)
        workspace = torch.empty(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        _wrapper(workspace, self._backend).plan(
            ones.bool().unsqueeze(0), ones, ones, 1, 1, problem.head_dim, q_data_type=problem.dtype
        )

    def _plan(self, problem: Problem) -> None:
        import numpy as np
        import torch

        grid = problem.mask.grid
        assert grid is not None
        share = problem.num_kv_heads // problem.mask.num_groups
        row_sizes, col_sizes = (
            np.diff(bounds, axis=1).astype(np.int32) for bounds in (grid.q_bounds, grid.k_bounds)
        )
        visible, rows, cols = (
            torch.from_numpy(part).to(problem.device).repeat_interleave(share, 0)
            for part in (grid.visible, row_sizes, col_sizes)
        )
        num_indices = int((visible.sum(1) * cols).sum())
        if num_indices > MOST_INDICES:
            raise ValueError(TOO_MANY.format(num_indices))
        num_lists = rows.numel()
        workspace = torch.empty(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        self._wrapper = _wrapper(workspace, self._backend)
        self._make_room(problem, workspace, num_lists)
        self._wrapper.plan(
            visible,
            rows,
            cols,
            problem.num_q_heads,
            problem.num_kv_heads,
            problem.head_dim,
            sm_scale=problem.scale,
            q_data_type=problem.dtype,
        )
        self.costs["metadata_bytes"] = 4 * (num_indices + 3 * num_lists + 2)

    def _make_room(self, problem: Problem, workspace: torch.Tensor, num_lists: int) -> None:
        """Enlarge the wrapper's buffers, whose fixed sizes are too small for long sequences of small
        blocks."""
        import torch

        int_bytes = _int_workspace_bytes(
            num_lists, problem.mask.seqlen_q, problem.num_q_heads, problem.num_kv_heads
        )
        self._wrapper.reset_workspace_buffer(
            workspace, torch.empty(int_bytes, dtype=torch.uint8, device=problem.device)
        )
        # there is no public method to enlarge it, and the plan writes there
        if num_lists > self._wrapper._kv_lens_buffer.numel():
            self._wrapper._kv_lens_buffer = torch.empty(num_lists, dtype=torch.int32, device=problem.device)
        self.costs["workspace_bytes"] = FLOAT_WORKSPACE_BYTES + int_bytes

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.transpose(0, 1).contiguous()

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        """The natural LSE, T × H; the kernel's LSE has base 2, (H, T)."""
        return lse.transpose(0, 1) * math.log(2)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        return Forward(*self._wrapper.run(q, k, v, return_lse=True))


def _wrapper(workspace: torch.Tensor, backend: str) -> Any:
    # where FlashInfer is not installed, a type checker takes this file for it
    from flashinfer import VariableBlockSparseAttentionWrapper  # pyright: ignore[reportAttributeAccessIssue]

    return VariableBlockSparseAttentionWrapper(workspace, backend=backend)
