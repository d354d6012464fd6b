"""Band attention: this project's own operator for any mask, dense or block-sparse, forward and backward."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Contribution, Forward, Kernel, Prepared, Problem, missing_for_triton
from longca.kernels.first_call import first_call_ms, wait
from longca.kernels.sizes import CallSizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from longca.masks import LazyMask, Mask, Traits
    from longca.ops.band import BandPlan

HEAD_DIMS = (64, 128)
RUN_BYTES = 8  # of a run of blocks in a table: start and end
TMA_COPIES = 4  # of a statistic of rows, for each head apart; of heads that share a tile together, fewer


class Band(Kernel):
    label = "band (own)"
    family = "both"
    summary = (
        "This project's own operator: any bands and any blocks, GQA, forward and backward, plans of "
        "O(bands + tiles)"
    )
    url = "https://arxiv.org/abs/2307.08691"
    needs = ("torch", "triton")
    returns_lse = True
    merges = True
    deterministic = True
    keeps_bits_of_heads = True

    def available(self, device_type: str) -> str | None:
        from longca.ops.band import unusable_triton

        return missing_for_triton(self.needs, device_type) or unusable_triton()

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        if call.dtype not in ("bf16", "fp16"):
            return "takes bf16 and fp16 only"
        if call.head_dim not in HEAD_DIMS:
            return f"takes head dims {' and '.join(map(str, HEAD_DIMS))} only"
        if call.num_kv_heads % traits.num_groups:
            return f"{call.num_kv_heads} KV heads cannot share {traits.num_groups} masks evenly"
        return None

    def predicted_backward_us(self, call: CallSpec, mask: Mask) -> float | None:
        from longca.ops.band import backward_us

        if not self.deterministic:
            return None
        return backward_us(mask, call.num_q_heads, call.num_kv_heads, call.head_dim)

    def warm(
        self, calls: Sequence[tuple[CallSpec, bool]], device: torch.device, masks: Sequence[Mask] = ()
    ) -> int:
        import torch

        from longca.ops.band import CallForm, builds_of, compile_builds

        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        # builds depend on the ratio of heads, not on their numbers
        forms = {
            CallForm(
                call.num_q_heads // call.num_kv_heads,
                1,
                call.head_dim,
                dtypes[call.dtype],
                needs_backward=call.direction == "bwd",
                in_parts=in_parts,
                deterministic=self.deterministic,
            )
            for call, in_parts in calls
        }
        blocks = [mask for mask in masks if mask.grid is not None]
        builds = [build for form in forms for build in builds_of(form, device, blocks)]
        return compile_builds(builds, device)

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Tables of the runs of blocks, and the LSE. Backward, statistics of rows; in one pass, also all
        gradients in float32, and the statistics in the copies that TMA reads."""
        traits = mask.traits
        sizes = CallSizes(call, traits)
        tables = RUN_BYTES * traits.num_bands if traits.is_block_grid else 0
        if not sizes.is_backward:
            return sizes.lse + tables
        if self._is_one_pass(call, mask):
            return sizes.query_sums + 2 * sizes.key_sums + (1 + 2 * TMA_COPIES) * sizes.lse + 2 * tables
        copies = -(-TMA_COPIES // sizes.num_shared)
        return (1 + 2 * copies) * sizes.lse + 2 * tables

    def _is_one_pass(self, call: CallSpec, mask: Mask | LazyMask) -> bool:
        """True if one kernel makes all gradients, on a Hopper GPU."""
        from longca.masks import whole_mask
        from longca.ops.band import is_one_pass

        if mask.traits.is_block_grid:
            return False  # in any order sums of blocks are made by two kernels
        whole = whole_mask(mask)
        heads = call.num_q_heads, call.num_kv_heads, call.head_dim
        key = whole.digest, *heads
        if key not in self._one_pass:
            self._one_pass[key] = is_one_pass(whole, *heads)
        return self._one_pass[key]

    @cached_property
    def _one_pass(self) -> dict[tuple[str, int, int, int], bool]:
        """By digest of the mask and heads: to choose takes milliseconds, and many methods share a mask."""
        return {}

    def prepare(self, problem: Problem) -> BandPrepared:
        return BandPrepared(problem, deterministic=self.deterministic)


class BandPrepared(Prepared):
    """Layout T × heads × D; LSE (T, H)."""

    def __init__(self, problem: Problem, *, deterministic: bool = True) -> None:
        from longca.ops.band import unknown_launchers

        super().__init__(problem)
        self.deterministic = deterministic
        self._plans: dict[tuple[tuple[int, int], ...], BandPlan] = {}
        # also loads torch's kernels, unless they are loaded already
        first_ms = self.costs["plan_ms"] = self._plan()
        if problem.records_costs:
            self.costs["plan_ms"] = self._plan()
            self.costs["compile_ms"] = first_call_ms(self) + max(first_ms - self.costs["plan_ms"], 0.0)
        self.costs["metadata_bytes"] = self.plan.num_bytes
        self.notes += filter(None, [unknown_launchers()])

    def _plan(self) -> float:
        """Make the plan and return the time that it took, in ms."""
        from longca.ops.band import plan_band_attention

        problem = self.problem
        self._wait()
        start = time.perf_counter()
        self.plan = plan_band_attention(
            problem.mask,
            num_q_heads=problem.num_q_heads,
            num_kv_heads=problem.num_kv_heads,
            head_dim=problem.head_dim,
            device=problem.device,
            needs_backward=problem.needs_backward,
            deterministic=self.deterministic,
            planned_kv_heads=problem.planned_kv_heads,
        )
        self._wait()
        return (time.perf_counter() - start) * 1e3

    def _wait(self) -> None:
        if self.problem.records_costs:
            wait(self.problem.device)

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        return x_THD.contiguous()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        from longca.ops.band import band_forward

        out, lse = band_forward(q, k, v, self.plan, self.problem.scale)
        return Forward(out, lse, saved=(q, k, v) if self.problem.needs_backward else None)

    def forward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        total: torch.Tensor,
        lse: torch.Tensor,
        out: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> None:
        from longca.ops.band import band_forward

        for part in contributions:
            band_forward(
                q,
                k,
                v,
                self._plan_of(part),
                self.problem.scale,
                initial=None if part.is_first else (total, lse),
                into=(out if part.is_last else total, lse),
            )

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and LSE that may cover more keys.

        Args:
            lse: (T, H) float32, natural log.
        """
        from longca.ops.band import band_backward

        return band_backward(q, k, v, out, lse, dout, self.plan, self.problem.scale)

    def backward_onto(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
        total: torch.Tensor,
        dq: torch.Tensor,
        contributions: Sequence[Contribution],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from longca.ops.band import band_backward_onto

        parts = [
            (self._plan_of(part), None if part.is_first else total, dq if part.is_last else total)
            for part in contributions
        ]
        return band_backward_onto(q, k, v, out, lse, dout, self.plan, parts, self.problem.scale)

    def expect(self, contributions: Sequence[Contribution]) -> None:
        from longca.ops.band import bytes_of, of_rows

        of_some_rows = [part.rows for part in contributions if part.rows is not None]
        if not of_some_rows:
            return
        self._wait()
        start = time.perf_counter()
        for rows in of_some_rows:
            if rows not in self._plans:
                self._plans[rows] = of_rows(self.plan, rows)
        self._wait()
        self.costs["plan_ms"] += (time.perf_counter() - start) * 1e3
        self.costs["metadata_bytes"] = bytes_of([self.plan, *self._plans.values()])

    def _plan_of(self, contribution: Contribution) -> BandPlan:
        return self.plan if contribution.rows is None else self._plans[contribution.rows]
