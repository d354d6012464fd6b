"""FlashAttention-4: CuTe kernels compiled at run time, with an element test and block lists if the mask needs
them."""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.contract import (
    Forward,
    Kernel,
    Prepared,
    Problem,
    missing_modules,
    unfit_device,
    unfit_mask,
)
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.packed import PackedPrepared
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import numpy as np
    import torch

    from longca.masks import LazyMask, Mask, Traits

BLOCK = 128  # the block size that both its forward and its backward support on Hopper
BLOCK_TABLES = 4  # of full and of partial blocks, for queries and for keys
MAX_INTERVALS = 8  # of a row; the element test compares them one by one


class Fa4(Kernel):
    label = "FA4"
    family = "both"
    summary = (
        "FlashAttention-4 (CuTe): windows and packed documents natively, other masks by mask_mod and "
        "block lists"
    )
    needs = ("torch", "flash_attn", "cutlass", "quack")
    url = "https://pypi.org/project/flash-attn-4/"
    returns_lse = True

    def available(self, device_type: str) -> str | None:
        return missing_modules(self.needs) or _missing_cute() or unfit_device(device_type, "sm_90+")

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "it computes in bf16 and fp16 only"
        if call.head_dim not in (64, 128):
            return "this adapter takes head dims 64 and 128 only"
        if unfit_mask(traits) is None:
            return None
        if traits.empty_rows:
            return "rows without keys are not defined under its block lists"
        if traits.max_row_intervals > MAX_INTERVALS and not traits.is_block_grid:
            return (
                f"rows see {traits.max_row_intervals} separate runs of keys, and this adapter's element "
                f"test compares {MAX_INTERVALS} at most"
            )
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Tables of blocks and of the element test. Backward: two more statistics of rows, dQ in float32, and
        dK and dV in float32 if heads share keys, all with rows of padding in each segment."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        own = sizes.lse + (sizes.flash_sums(BLOCK) if sizes.is_backward else 0)
        if unfit_mask(traits) is None:
            return own
        num_lists = call.num_q_heads if traits.per_head else 1
        return own + BLOCK_TABLES * sizes.tile_table(BLOCK, num_lists)

    def prepare(self, problem: Problem) -> Prepared:
        return (
            Fa4PackedPrepared(problem)
            if unfit_mask(problem.mask.traits) is None
            else Fa4MaskedPrepared(problem)
        )


def _missing_cute() -> str | None:
    """Looks for `flash_attn.cute` without importing `flash_attn`, which may be FlashAttention-2."""
    spec = importlib.util.find_spec("flash_attn")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    is_there = any((Path(folder) / "cute" / "block_sparsity.py").exists() for folder in folders)
    return None if is_there else "module 'flash_attn.cute' of flash-attn-4 is not installed"


class Fa4PackedPrepared(PackedPrepared):
    """FlashAttention-4 for one segment, or several packed ones, under one window.

    Args:
        deterministic: blocks of keys add to a row of dq, and heads of a group to dk and dv, in a fixed order.
    """

    def __init__(self, problem: Problem, *, deterministic: bool = False) -> None:
        super().__init__(problem)
        self._order: dict[str, bool] = {"deterministic": True} if deterministic else {}
        self._interface: Any = importlib.import_module("flash_attn.cute.interface")
        left, right = (None if bound < 0 else bound for bound in self.window)
        self._options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": self.causal}
        if not self.causal:
            self._options |= {"window_size_left": left, "window_size_right": right}
        if self.cu_seqlens is not None:
            self._options |= {
                "cu_seqlens_q": self.cu_seqlens,
                "cu_seqlens_k": self.cu_seqlens,
                "max_seqlen_q": self.max_seqlen,
                "max_seqlen_k": self.max_seqlen,
            }
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse, *_ = self._interface._flash_attn_fwd(q, k, v, return_lse=True, **self._options)
        return out, lse

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dq, dk, dv, *_ = self._interface._flash_attn_bwd(
            q, k, v, out, dout, lse, **self._options, **self._order
        )
        return dq, dk, dv


class Fa4MaskedPrepared(Prepared):
    """Layout (1, T, heads, D); LSE (1, H, T). Blocks of 128: full ones need no test, partial ones use the
    mask_mod."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        start = time.perf_counter()
        self._interface: Any = importlib.import_module("flash_attn.cute.interface")
        self._forward_blocks, self._backward_blocks = self._blocks()
        self._options = {"softmax_scale": problem.scale, **self._element_test()}
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def _blocks(self) -> tuple[Any, Any]:
        """The visible blocks as two lists: by q-block for the forward, by k-block for the backward."""
        from longca.lowering.flex import block_mask

        mask = block_mask(self.problem.mask, self.problem.device, self.problem.num_q_heads, BLOCK)
        by_query = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
        by_key = mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices
        lists = importlib.import_module("flash_attn.cute.block_sparsity").BlockSparseTensorsTorch
        self.costs["metadata_bytes"] = sum(x.nbytes for x in (*by_query, *by_key) if x is not None)
        return lists(*by_query, block_size=(BLOCK, BLOCK)), lists(*by_key, block_size=(BLOCK, BLOCK))

    def _element_test(self) -> dict[str, Any]:
        import torch

        from longca.ops import fa4_mask_mod

        mask = self.problem.mask
        heads_per_group = self.problem.num_q_heads // self.problem.mask.num_groups
        if mask.grid is not None and not self._forward_blocks.mask_block_cnt.any():
            return {}  # every block is full
        tables = element_tables(mask)
        mod = (
            fa4_mask_mod.interval_mask_mod(tables[0].shape[1] // 2, heads_per_group)
            if mask.grid is None
            else fa4_mask_mod.grid_mask_mod(heads_per_group)
        )
        self.costs["metadata_bytes"] += sum(table.nbytes for table in tables)
        return {
            "mask_mod": mod,
            "aux_tensors": [torch.from_numpy(table).to(self.problem.device) for table in tables],
        }

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.contiguous().unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.squeeze(0).T

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous().unsqueeze(0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        out, lse, *_ = self._interface._flash_attn_fwd(
            q, k, v, return_lse=True, block_sparse_tensors=self._forward_blocks, **self._options
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
        """(dq, dk, dv) from an output and LSE that may cover more keys than these, as context parallelism
        needs."""
        dq, dk, dv, *_ = self._interface._flash_attn_bwd(
            q, k, v, out, dout, lse, block_sparse_tensors=self._backward_blocks, **self._options
        )
        return dq, dk, dv


def element_tables(mask: Mask) -> list[np.ndarray]:
    """Tables that the element test reads, all int32: intervals (G, 2n, Sq); for a grid visible blocks (G, M,
    N), the block of each row (G, Sq) and of each key (G, Sk). Tables are padded to whole blocks, since the
    kernel evaluates the test there before it discards these elements.
    """
    import numpy as np

    from longca.lowering import block_of, interval_table

    def whole(table: np.ndarray) -> np.ndarray:
        return np.pad(table, [(0, 0)] * (table.ndim - 1) + [(0, -table.shape[-1] % BLOCK)])

    if mask.grid is None:
        return [whole(interval_table(mask))]
    sides = (
        np.stack([block_of(bounds) for bounds in of_side])
        for of_side in (mask.grid.q_bounds, mask.grid.k_bounds)
    )
    return [mask.grid.visible.astype(np.int32), *map(whole, sides)]
