"""cuDNN's block-sparse attention: CuTe kernels of the cuDNN frontend, over lists of blocks of 64 or 128."""

# cuDNN's front end need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from longca.core import CallSpec
from longca.kernels.block_tables import block_tables, not_blocks_of, split_blocks
from longca.kernels.contract import Forward, Kernel, Prepared, Problem, missing_modules, unfit_device
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits

BLOCKS = (128, 64)  # larger ones are split into the first that fits
HEAD_DIMS = (64, 128)


class CudnnBsa(Kernel):
    label = "cuDNN BSA"
    family = "sparse"
    summary = (
        "cudnn.block_sparse_attention of the cuDNN frontend (experimental): blocks of 64 and 128; "
        "backward MHA only"
    )
    url = "https://github.com/NVIDIA/cudnn-frontend"
    needs = ("torch", "cudnn.block_sparse_attention", "cutlass", "tvm_ffi", "cuda.bindings")
    returns_lse = True
    transposes = True

    def available(self, device_type: str) -> str | None:
        return unfit_device(device_type, "sm_90") or missing_modules(self.needs)

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        reason = not_blocks_of(traits, min(BLOCKS))
        if reason is not None:
            return reason
        if call.dtype not in ("bf16", "fp16") or call.head_dim not in HEAD_DIMS:
            return "it takes head dims 64 and 128 in bf16 and fp16"
        if call.direction == "fwd":
            return None
        if call.num_kv_heads < call.num_q_heads:
            return "its backward has no GQA"
        if call.dtype != "bf16" or call.head_dim != 128:
            return "its backward has head dim 128 in bf16 only"
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """A list for each query head. Backward, which has no GQA: lists of keys too, two more statistics of
        rows, and all gradients in float32."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        size = next((size for size in BLOCKS if not_blocks_of(traits, size) is None), min(BLOCKS))
        lists = sizes.block_list((size, size), call.num_q_heads)
        if not sizes.is_backward:
            return sizes.lse + lists
        return 3 * sizes.lse + 2 * lists + sizes.query_sums + 2 * sizes.key_sums

    def prepare(self, problem: Problem) -> CudnnBsaPrepared:
        return CudnnBsaPrepared(problem)


class CudnnBsaPrepared(Prepared):
    """Layout (1, heads, T, D), LSE (1, H, T). Every query head has separate lists, even if heads share a
    mask."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        start = time.perf_counter()
        size = next(size for size in BLOCKS if not_blocks_of(problem.mask.traits, size) is None)
        mask = split_blocks(problem.mask, size)
        if mask is not problem.mask:
            self.notes.append(f"blocks were split into blocks of {size}")
        tables = block_tables(mask, problem.device, problem.num_q_heads, of_keys=False)
        lists = tables.q_to_k.unsqueeze(0)
        counts = tables.q_to_k_counts.unsqueeze(0)
        fewest, most = (int(count) for count in counts.aminmax())
        # lists of equal length are passed as one number, as documented: these kernels are simpler
        lengths = {"block_sparse_num": most} if fewest == most > 0 else {"q2k_block_nums": counts}
        self._rules: dict[str, Any] = {
            "q2k_block_index": lists,
            "sparse_block_size": size,
            "softmax_scale": problem.scale,
            **lengths,
        }
        self._allow_empty = fewest == 0
        wait(problem.device)
        self.costs["plan_ms"] = (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = sum(table.nbytes for table in (lists, counts))
        if problem.needs_backward:
            self.notes.append(
                "its backward turns the lists into lists of query blocks for each key block within the timed "
                "call"
            )
        if problem.records_costs:
            self.costs["compile_ms"] = first_call_ms(self)

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.transpose(0, 1).contiguous().unsqueeze(0)

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0).transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.squeeze(0).transpose(0, 1)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous().unsqueeze(0)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from cudnn.block_sparse_attention import block_sparse_attention_forward

        out, lse = block_sparse_attention_forward(
            q, k, v, allow_empty_block_nums=self._allow_empty, **self._rules
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
        from cudnn.block_sparse_attention import block_sparse_attention_backward

        dq, dk, dv = block_sparse_attention_backward(dout, q, k, v, out, lse, **self._rules)
        return dq, dk, dv
