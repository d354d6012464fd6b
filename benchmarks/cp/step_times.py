"""Times the kernel calls of a plan's ranks on one device, one rank after another, at their shapes, on random
values.

Values do not change the work of kernels, but the LSE that backward gets fits them. Equal calls are timed
once.
Shapes: L tokens of a rank, T steps of its plan, H query and G KV heads of a chunk on a rank, D head dim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from longca.cp.runtime.accumulate import contributions_of
from longca.cp.runtime.head_pipeline import HeadCall
from longca.cp.runtime.plan_attention import LocalSteps
from longca.cp.schedule.planner import step_masks
from longca.lab.bench.measure.timer import time_calls

if TYPE_CHECKING:
    from longca.cp.partition.mesh import RankHeads
    from longca.cp.runtime.accumulate import DqAccumulator, OutputAccumulator
    from longca.cp.schedule.plan import Plan
    from longca.kernels import Kernel, Problem
    from longca.lab.studies import Measure

Both = tuple[float, float]
"""seconds forward and backward"""
PASS_ROWS = 8192


@dataclass(frozen=True)
class Passes:
    """Elementwise work of a rank beside its steps' calls, in seconds a token; the rates are measured once."""

    result_s: float
    """casting the output from float32; 0 where the kernel merges"""
    sums_s: float
    """zeroing float32 sums of dq, dk and dv and casting them; where the kernel merges, of dk and dv alone"""
    add_key_s: float
    """adding the dk and dv of a key that come from another rank"""


class Clock:
    """Times calls of one kernel on one device, and keeps the times."""

    def __init__(self, kernel: Kernel, device: torch.device, measure: Measure) -> None:
        self._kernel = kernel
        self._device = device
        self._measure = measure
        self._known: dict[Hashable, Both] = {}
        self._passes: dict[tuple[int, int], Passes] = {}
        self._copy_byte_s = 0.0
        self._drawn: dict[str, torch.Tensor] = {}

    def steps(self, plan: Plan, rank: int, problem: Problem) -> dict[int, Both]:
        """Times each step in which the rank has a kernel; merging the output and adding dq are part of it.

        Args:
            problem: of the heads in question.
        """
        steps = plan.steps(rank)
        num_rows = int(plan.sharding.num_tokens[rank])
        keys = {}
        parts = step_masks(plan, rank, merging=self._kernel.merges)
        contributions = contributions_of(parts, num_rows).of_step if self._kernel.merges else {}
        for step in steps:
            start, end, mask = parts[step.number]
            keys[step.number] = (
                mask.digest,
                start,
                end,
                num_rows,
                problem.num_q_heads,
                problem.num_kv_heads,
                step is steps[0],
                step.number == 0,
                len(steps) == 1,
                contributions.get(step.number),
            )
        if any(key not in self._known for key in keys.values()):
            calls = _Calls(self, LocalSteps(plan, rank, problem, self._kernel), num_rows, problem)
            for step in steps:
                if keys[step.number] not in self._known:
                    self._known[keys[step.number]] = calls.both(
                        step.number, step.num_keys, is_first=step is steps[0]
                    )
        return {number: self._known[key] for number, key in keys.items()}

    def heads(self, problem: Problem, share: RankHeads) -> Both:
        """Times a call with all keys.

        Args:
            problem: of the whole sequence, with the mask of the heads in question.
            share: these heads.
        """
        key = problem.mask.digest, len(share.q), len(share.kv), share.local_kv
        if key not in self._known:
            seqlen = problem.mask.seqlen_q
            dim = problem.head_dim
            prepared = self._kernel.prepare(
                replace(problem, num_q_heads=len(share.q), num_kv_heads=len(share.local_kv))
            )
            call = HeadCall(prepared, share)
            q, dout = (self.draw(name, (seqlen, len(share.q), dim), problem.dtype) for name in ("q", "dout"))
            k, v = (self.draw(name, (seqlen, len(share.kv), dim), problem.dtype) for name in ("k", "v"))
            saved = call.forward(q, k, v, None).saved
            self._known[key] = (
                self.seconds(lambda: call.forward(q, k, v, None)),
                self.seconds(lambda: call.backward(saved, dout)),
            )
        return self._known[key]

    def baseline(self, problem: Problem) -> Both:
        """Times the kernel on one device, in its own layout."""
        prepared = self._kernel.prepare(problem)
        seqlen = problem.mask.seqlen_q
        dim = problem.head_dim
        q, k, v, dout = (
            prepared.to_layout(self.draw(name, (seqlen, heads, dim), problem.dtype))
            for name, heads in (
                ("q", problem.num_q_heads),
                ("k", problem.num_kv_heads),
                ("v", problem.num_kv_heads),
                ("dout", problem.num_q_heads),
            )
        )
        forward = prepared.forward(q, k, v)
        return self.seconds(lambda: prepared.forward(q, k, v)), self.seconds(
            lambda: prepared.backward(forward, dout)
        )

    def passes(self, problem: Problem) -> Passes:
        """Returns the elementwise rates for the heads of a problem."""
        key = problem.num_q_heads, problem.num_kv_heads
        if key not in self._passes:
            self._passes[key] = self._time_passes(problem)
        return self._passes[key]

    def _time_passes(self, problem: Problem) -> Passes:
        dim = problem.head_dim
        q_heads = problem.num_q_heads
        kv_heads = problem.num_kv_heads
        dtype = problem.dtype
        shapes = [(PASS_ROWS, heads, dim) for heads in (q_heads, kv_heads, kv_heads)]
        wide = [torch.zeros(shape, dtype=torch.float32, device=self._device) for shape in shapes]
        parts = [self.draw(name, shape, dtype) for name, shape in zip(("q", "k", "v"), shapes, strict=True)]

        def sums() -> None:
            for shape in shapes[1:] if self._kernel.merges else shapes:
                torch.zeros(shape, dtype=torch.float32, device=self._device).to(dtype)

        def add() -> None:
            for total, part in zip(wide[1:], parts[1:], strict=True):
                total.add_(part)

        result_s, sums_s, add_s = (
            self.seconds(call) / PASS_ROWS for call in (lambda: wide[0].to(dtype), sums, add)
        )
        return Passes(0.0 if self._kernel.merges else result_s, sums_s, add_s)

    def copy_byte_s(self, problem: Problem) -> float:
        """Returns seconds for a byte of tokens whose heads are packed for another rank."""
        if not self._copy_byte_s:
            x = self.draw("q", (PASS_ROWS, problem.num_q_heads + 1, problem.head_dim), problem.dtype)[:, 1:]
            self._copy_byte_s = self.seconds(lambda: x.contiguous()) / (x.numel() * x.element_size())
        return self._copy_byte_s

    def seconds(self, call: Callable[[], object]) -> float:
        """Returns the median of the project's timer, in seconds."""
        return statistics.median(time_calls(call, self._measure, self._device).time_ms[0]) / 1e3

    def draw(self, name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> torch.Tensor:
        """Returns standard normal values, contiguous; the same memory for each name."""
        size = math.prod(shape)
        if name not in self._drawn or self._drawn[name].numel() < size or self._drawn[name].dtype != dtype:
            self._drawn.pop(name, None)
            self._drawn[name] = torch.randn(size, dtype=dtype, device=self._device)
        return self._drawn[name][:size].view(shape)


class _Calls:
    """The steps of one rank, run as `PlanAttention` runs them."""

    def __init__(self, clock: Clock, steps: LocalSteps, num_rows: int, problem: Problem) -> None:
        self._clock = clock
        self._steps = steps
        self._problem = problem
        shape = (num_rows, problem.num_q_heads, problem.head_dim)
        dtype = problem.dtype
        self._q, self._out, self._dout = (clock.draw(name, shape, dtype) for name in ("q", "out", "dout"))
        keys_of_a_row = problem.mask.area / (problem.mask.num_groups * problem.mask.seqlen_q)
        lse = math.log(max(keys_of_a_row, 1.0)) + 0.5  # of standard normal scores
        self._lse = torch.full(shape[:2], lse, dtype=torch.float32, device=self._q.device)
        self._totals: tuple[OutputAccumulator, DqAccumulator] | None = None
        self._added: set[int] = set()
        """steps that are in the totals"""

    def both(self, number: int, num_keys: int, *, is_first: bool) -> Both:
        shape = (num_keys, self._problem.num_kv_heads, self._problem.head_dim)
        dtype = self._problem.dtype
        before = (None, None) if is_first else self._before(number)
        k, v = (self._clock.draw(name, shape, dtype) for name in ("k", "v"))
        sums = (
            [torch.zeros(shape, dtype=torch.float32, device=k.device) for _ in range(2)]
            if number == 0
            else []
        )

        def forward() -> None:
            total = before[0] or self._steps.output_accumulator(self._q)
            self._steps.forward(number, total, k, v)
            total.add()

        def backward() -> None:
            total_dq = before[1] or self._steps.dq_accumulator(self._q)
            of_keys = self._steps.backward(number, total_dq, k, v, self._out, self._lse, self._dout)
            total_dq.add()
            for total, part in zip(sums, of_keys if sums else [], strict=True):
                total.add_(part)

        with torch.no_grad():
            return self._clock.seconds(forward), self._clock.seconds(backward)

    def _before(self, number: int) -> tuple[OutputAccumulator, DqAccumulator]:
        """Computes the rank's steps before this one, to merge onto: each row that a step merges with has had
        its first contribution."""
        if self._totals is None:
            self._totals = self._steps.output_accumulator(self._q), self._steps.dq_accumulator(self._q)
        total, total_dq = self._totals
        for step in sorted(set(self._steps.steps) - self._added):
            if step >= number:
                break
            num_keys = self._steps.steps[step].call.prepared.problem.mask.seqlen_k
            shape = (num_keys, self._problem.num_kv_heads, self._problem.head_dim)
            dtype = self._problem.dtype
            k, v = (self._clock.draw(name, shape, dtype) for name in ("k", "v"))
            with torch.no_grad():
                self._steps.forward(step, total, k, v)
                total.add()
                self._steps.backward(step, total_dq, k, v, self._out, self._lse, self._dout)
                total_dq.add()
            self._added.add(step)
        return self._totals
