"""The plan of a cell's checks: its inputs, the checked part of the result, and the checked parts of timed
calls.

It depends on the cell and a seed. The measuring process and the judge compute it independently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from longca.kernels import Problem
from longca.lab.bench.check.changes import NAMES, TIMED, Changes
from longca.lab.bench.check.inputs import Inputs, input_seed, make_inputs
from longca.lab.bench.check.oracle import PartResult, checked_dout
from longca.lab.bench.check.scope import CheckedPart, CheckedSubset, affordable, whole
from longca.lab.studies import Cell

EXTRA_ROWS = 6  # of each KV head of a site, in each timed call that is judged: drawn for that call
NUM_JUDGED = 2  # timed calls whose results are judged
NUM_BIT_RUNS = 4  # backward calls whose bits are compared, of kernels that promise the same bits


@dataclass(frozen=True)
class TimedPart:
    """Checked rows and keys of one KV head in a timed call."""

    part: CheckedPart
    keys: tuple[int, ...]
    """of which the gradients are looked at"""


@dataclass(frozen=True)
class TimedResult:
    """The checked parts of one timed call."""

    call: int
    """number of the call, as in `Changes`"""
    parts: list[PartResult]
    are_finite: dict[str, bool]
    """of the whole tensors"""
    is_sample: bool = True
    """its time is among the samples"""
    drawn: int = 0
    """what chose the rows that were looked at beside those of the plan; drawn after the call"""


class CheckPlan:
    """The checks of one cell.

    Args:
        seed: seed of the run; kernels, strategies and directions of one problem share the plan.
        everything: check the whole result at any cost.
    """

    def __init__(self, cell: Cell, problem: Problem, seed: int, *, everything: bool = False) -> None:
        self.cell = cell
        self.problem = problem
        self.run_seed = seed
        self.everything = everything
        text = f"{seed} {input_seed(cell)}"
        self.seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        self.scope: CheckedSubset = whole(problem) if everything else affordable(problem, self.seed)
        self.changes = Changes(cell, problem.mask, self.seed)
        self.timed_names = TIMED[cell.direction]
        self._expected: tuple[int, list[TimedPart]] = -1, []

    @property
    def ratio(self) -> int:
        return self.problem.num_q_heads // self.problem.num_kv_heads

    @property
    def used_names(self) -> tuple[str, ...]:
        """The inputs of a kernel in this direction."""
        return NAMES if self.problem.needs_backward else NAMES[:3]

    def inputs(self) -> Inputs:
        """The inputs of the checked call."""
        inputs = make_inputs(self.cell, self.problem.device)
        for name in NAMES:
            self.changes.apply(name, tensor_of(inputs, name), 0)
        return inputs

    def dout_checked(self, dout_THD: torch.Tensor) -> torch.Tensor:
        """The output gradient of the checked call."""
        return checked_dout(self.scope, self.ratio, dout_THD)

    def timed_parts(self, call: int) -> list[TimedPart]:
        """Rows and keys of sites and some others of the same KV head, which are drawn for each call.

        A kernel can find them out before the call, for they follow from the seed; `late_part` cannot be
        known then.
        """
        mask = self.problem.mask
        rng = np.random.default_rng((self.seed, call))
        by_head: dict[int, tuple[set[int], set[int]]] = {}
        for site in self.changes.sites:
            rows, keys = by_head.setdefault(site.kv_head, (set(), set()))
            rows.add(site.row)
            keys.add(site.key)
        if not by_head:
            by_head[int(rng.integers(self.problem.num_kv_heads))] = set(), set()
        # there the calls are compared with each other
        if not (self.scope.is_sample and self.problem.needs_backward):
            head = sorted(by_head)[int(rng.integers(len(by_head)))]
            by_head = {head: by_head[head]}
        parts = []
        for head, (rows, keys) in by_head.items():
            rows |= set(rng.integers(mask.seqlen_q, size=EXTRA_ROWS).tolist())
            keys |= set(rng.integers(mask.seqlen_k, size=EXTRA_ROWS).tolist())
            parts.append(TimedPart(CheckedPart((head,), tuple(sorted(rows))), tuple(sorted(keys))))
        return parts

    def late_part(self, drawn: int) -> TimedPart:
        """Rows of one KV head, of all of them, that follow from a number which is drawn after the call."""
        rng = np.random.default_rng((self.seed, drawn))
        head = int(rng.integers(self.problem.num_kv_heads))
        rows = set(rng.integers(self.problem.mask.seqlen_q, size=EXTRA_ROWS).tolist())
        return TimedPart(CheckedPart((head,), tuple(sorted(rows))), ())

    def judged_parts(self, result: TimedResult) -> list[TimedPart]:
        """The parts of a timed call that are judged, in the order of its results."""
        return [*self.timed_parts(result.call), self.late_part(result.drawn)]

    def expect(self, call: int) -> None:
        """Choose the checked parts of a call in advance, so that they are copied right after the timed
        interval."""
        self._expected = call, self.timed_parts(call)

    def parts_to_cut(self, call: int, drawn: int) -> Iterator[TimedPart]:
        """`judged_parts` of a call that has just ended. Those of the expected call are at hand, and come
        first: work that goes on after the call must not get done."""
        expected, parts = self._expected
        yield from parts if expected == call else self.timed_parts(call)
        yield self.late_part(drawn)

    def cut_timed(self, call: int, drawn: int, tensors: dict[str, torch.Tensor]) -> list[PartResult]:
        """Copies of the checked parts of a timed call's result, in T × heads (× D)."""
        results = []
        for timed in self.parts_to_cut(call, drawn):
            [kv_head] = timed.part.kv_heads
            q_heads = timed.part.q_heads(self.ratio)
            rows = list(timed.part.rows)
            keys = list(timed.keys)
            results.append(
                {
                    name: x[keys, kv_head][:, None]
                    if name in ("dk", "dv")
                    else x[:, q_heads[0] : q_heads[-1] + 1][rows]
                    for name, x in tensors.items()
                }
            )
        return results


def tensor_of(inputs: Inputs, name: str) -> torch.Tensor:
    """An input by its name: q, k, v or dout."""
    return {"q": inputs.q_THD, "k": inputs.k_TGD, "v": inputs.v_TGD, "dout": inputs.dout_THD}[name]
