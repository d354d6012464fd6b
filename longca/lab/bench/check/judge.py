"""The judge of one cell: it computes inputs and reference independently, and judges the checked call and
timed calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from longca.lab.bench.check.changes import WHOLE, reverse
from longca.lab.bench.check.digest import content_digest, mask_digest
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.oracle import FIELDS, Oracle, PartResult, wrong
from longca.lab.bench.check.plan import NUM_BIT_RUNS, CheckPlan, TimedPart, TimedResult, tensor_of
from longca.lab.bench.check.reference import (
    Arithmetic,
    Chunk,
    DenseMaskRows,
    HeadKeys,
    HeadsReference,
    Reference,
    attend,
)
from longca.lab.bench.check.scope import CheckedPart, CheckedSubset
from longca.lab.bench.check.tally import ErrorAccumulator
from longca.lab.studies import Accuracy

Digests = dict[str, int]
"""of inputs, by name, and of the mask, after the kernel was called; or of gradients"""
CHANGES_MASK = "it changes its mask, which the next call would see; it must work on a copy"


class Judge:
    """Judges the results of one cell.

    Args:
        reference: a kept reference for this plan, with inputs that no kernel has touched; made here if not
            given.
    """

    def __init__(self, plan: CheckPlan, reference: Reference | None = None) -> None:
        self.plan = plan
        self._mask_digest = mask_digest(plan.problem.mask)
        self.inputs = plan.inputs() if reference is None else reference.inputs
        heads = {site.kv_head for site in plan.changes.sites}
        self._oracle = Oracle(plan.problem, self.inputs, scope=plan.scope, reference=reference, keys_of=heads)
        self.accuracy: Accuracy | None = None
        self.reason: str | None = None
        """reason of the first wrong result; None if all are correct"""
        self.is_complete = False
        """True if timed calls were judged, too"""

    def check(self, results: list[PartResult], are_finite: dict[str, bool], digests: Digests) -> str | None:
        """Judge the checked call. Returns the reason why it is wrong; None if it is correct."""
        accuracy = self._oracle.judge_parts(results, are_finite)
        self.accuracy = accuracy.model_copy(update={"seed": self.plan.run_seed})
        self.reason = self._changed(
            digests, {"dout": self._oracle.dout_THD} if "dout" in digests else {}
        ) or wrong(accuracy)
        return self.reason

    def check_bits(self, runs: list[Digests]) -> str | None:
        """Judge the gradients of several backward calls on the same inputs, for a kernel that promises the
        same bits. Returns the reason why they are not the same; None if they are.

        Args:
            runs: for each call, the digests of its gradients.
        """
        assert self.accuracy is not None, "bits are judged after the checked call"
        if len(runs) < NUM_BIT_RUNS or any(run.keys() != {"dq", "dk", "dv"} for run in runs):
            raise ValueError(f"the digests of {NUM_BIT_RUNS} backward calls are needed")
        numbers = {name: len({run[name] for run in runs}) for name in runs[0]}
        differing = [f"{number} different {name}" for name, number in numbers.items() if number > 1]
        self.accuracy = self.accuracy.model_copy(
            update={"deterministic": not differing, "bit_runs": len(runs)}
        )
        self.reason = self.reason or (
            f"not deterministic: {len(runs)} backward calls on the same inputs gave {' and '.join(differing)}"
            if differing
            else None
        )
        return self.reason

    def check_timed(self, timed: list[TimedResult], digests: Digests, last_call: int) -> str | None:
        """Judge timed calls. Returns the reason why one is wrong; None if all are correct.

        Args:
            last_call: number of the last call before the digests were taken.
        """
        assert self.accuracy is not None, "timed calls are judged after the checked one"
        if not timed:
            raise ValueError("no result of a timed call was sent")
        try:
            reason = None
            judged = (
                _TimedGradients(self.plan, self._oracle, self.inputs)
                if self.plan.problem.needs_backward
                else None
            )
            for result in sorted(timed, key=lambda result: result.call):
                self._apply(result.call)
                if result.is_sample:
                    reason = reason or self._wrong_timed(result) or (judged.wrong(result) if judged else None)
                    continue
                with self._reversed():
                    reason = reason or self._wrong_timed(result)
            self._apply(last_call)
            self.reason = self._changed(digests, {}) or (reason and f"in a timed call, {reason}")
        finally:
            self._apply(0)
        self.accuracy = self.accuracy.model_copy(
            update={"timed_calls": sum(result.is_sample for result in timed)}
        )
        self.is_complete = True
        return self.reason

    def _apply(self, call: int) -> None:
        for name in self.plan.timed_names:
            self.plan.changes.apply(name, tensor_of(self.inputs, name), call)

    @contextmanager
    def _reversed(self) -> Iterator[None]:
        """The input that changes as a whole, in the order of calls that are not samples."""
        changed = tensor_of(self.inputs, WHOLE[self.plan.cell.direction])
        reverse(changed)
        try:
            yield
        finally:
            reverse(changed)

    def _wrong_timed(self, result: TimedResult) -> str | None:
        parts = self.plan.judged_parts(result)
        scope = CheckedSubset(tuple(timed.part for timed in parts), "", is_sample=True)
        given = [{name: x for name, x in of_part.items() if name in FIELDS} for of_part in result.parts]
        rows = Oracle(self.plan.problem, self.inputs, scope=scope)
        rows.usual_lengths = self._oracle.usual_lengths
        accuracy = rows.judge_parts(
            given, {name: fine for name, fine in result.are_finite.items() if name in FIELDS}, keys=False
        )
        infinite = [name for name, fine in result.are_finite.items() if not fine]
        if infinite:
            return f"{infinite[0]} is not finite: nothing was written there, or an earlier result was kept"
        return wrong(accuracy, rows_alone=True)

    def _changed(self, digests: Digests, instead: dict[str, torch.Tensor]) -> str | None:
        """The reason that names changed inputs."""
        if digests.get("mask", self._mask_digest) != self._mask_digest:
            return CHANGES_MASK  # the changes of inputs follow from it
        expected = {name: tensor_of(self.inputs, name) for name in self.plan.used_names} | instead
        missing = expected.keys() - digests.keys()
        if missing:
            raise ValueError(f"no digest of {', '.join(sorted(missing))} was sent")
        names = [name for name, x in expected.items() if content_digest(x) != digests[name]]
        which = f"input{'s' if len(names) > 1 else ''} {' and '.join(names)}"
        return (
            f"it changes its {which}, which the next call would see; it must work on a copy"
            if names
            else None
        )


class _TimedGradients:
    """Judges dk and dv of timed calls, in which the output gradient changes at the sites alone.

    Backward is linear in the output gradient. So the gradients of a call are those of the checked call, where
    that was given the whole output gradient, plus what the sites' rows contribute now, less what they
    contributed then. If the checked call was given only some rows, the calls are compared with each other
    in the same way; each row then has the tolerance of one row.
    """

    def __init__(self, plan: CheckPlan, oracle: Oracle, inputs: Inputs) -> None:
        self._plan = plan
        self._inputs = inputs
        self._base = {} if plan.scope.is_sample else oracle.keys
        self._factors = oracle.row_factors
        self._first: dict[int, tuple[dict[str, dict[int, torch.Tensor]], HeadKeys]] = {}
        self._chunks: dict[int, tuple[HeadsReference, tuple[int, ...], torch.Tensor, Chunk]] = {}
        self._at_check = {head: self._contributions(head) for head in self._base}

    def wrong(self, result: TimedResult) -> str | None:
        eps = torch.finfo(self._plan.problem.dtype).eps
        errors = {name: ErrorAccumulator(eps) for name in ("dk", "dv")}
        for timed, given in zip(self._plan.judged_parts(result), result.parts, strict=True):
            self._compare(timed, given, errors)
        for name, error in errors.items():
            if not error.worst_row() <= 1.0:
                return f"a row of {name} is off by {error.worst_row():.3g} times what is allowed in one"
        return None

    def _compare(self, timed: TimedPart, given: PartResult, errors: dict[str, ErrorAccumulator]) -> None:
        if not timed.keys:
            return None
        [head] = timed.part.kv_heads
        keys = list(timed.keys)
        now = self._contributions(head)
        if head not in self._base:
            return self._compare_with_first(head, keys, given, now, errors)
        base = self._base[head]
        then = self._at_check.get(head, now)
        for number, name in enumerate(("dk", "dv")):
            exact = (base.exact[number] + now.exact[number] - then.exact[number])[keys]
            off = (base.emulated[number] - base.exact[number])[keys] + _rounding(
                exact, self._plan.problem.dtype
            )
            size = torch.maximum(base.weight_C, now.weight_C)[keys] * self._factors[name]
            errors[name].add(given[name][:, 0].double(), exact, exact + off, size)
        return None

    def _compare_with_first(
        self,
        head: int,
        keys: list[int],
        given: PartResult,
        now: HeadKeys,
        errors: dict[str, ErrorAccumulator],
    ) -> None:
        results = {name: dict(zip(keys, given[name][:, 0].double(), strict=True)) for name in ("dk", "dv")}
        if head not in self._first:
            self._first[head] = results, now
            return
        before, then = self._first[head]
        shared = [key for key in keys if key in before["dk"]]
        if not shared:
            return  # nothing changes under this mask
        for number, name in enumerate(("dk", "dv")):
            first = torch.stack([before[name][key] for key in shared])
            exact = first + (now.exact[number] - then.exact[number])[shared]
            rounded = exact + _rounding(exact, self._plan.problem.dtype)
            size = torch.maximum(now.weight_C, then.weight_C)[shared] * self._factors[name] + exact.norm(
                dim=-1
            )
            errors[name].add(torch.stack([results[name][key] for key in shared]), exact, rounded, size)

    def _contributions(self, head: int) -> HeadKeys:
        """The sums over the sites' rows, under the present output gradient."""
        if head not in self._chunks:
            self._chunks[head] = self._chunk(head)
        reference, rows, seen, chunk = self._chunks[head]
        problem = self._plan.problem
        zero = torch.zeros(
            problem.mask.seqlen_k, problem.head_dim, dtype=torch.float64, device=problem.device
        )
        if not rows:
            return HeadKeys((zero, zero), (zero, zero), zero[:, 0])
        dout = reference.rows_of(self._inputs.dout_THD, rows).double()
        _, keys = attend(replace(chunk, dout_GRnD=dout), Arithmetic(torch.float64))
        assert keys is not None
        dk = zero.clone()
        dv = zero.clone()
        weight = zero[:, 0].clone()
        dk[seen], dv[seen], weight[seen] = keys.dk_GCD[0], keys.dv_GCD[0], keys.weight_GC[0]
        return HeadKeys((dk, dv), (dk, dv), weight)

    def _chunk(self, head: int) -> tuple[HeadsReference, tuple[int, ...], torch.Tensor, Chunk]:
        """Operands of the sites' rows of a KV head, which do not change from call to call but for the output
        gradient."""
        problem = self._plan.problem
        rows = tuple(sorted(site.row for site in self._plan.changes.sites if site.kv_head == head))
        group = head // (problem.num_kv_heads // problem.mask.num_groups)
        dense = DenseMaskRows(problem.mask, group, problem.device)
        reference = HeadsReference(problem, self._inputs, CheckedPart((head,), rows), dense, keep=False)
        visible = dense.rows(rows or (0,))
        seen = visible.any(0).nonzero().squeeze(1)
        q = reference.rows_of(self._inputs.q_THD, rows).double() * problem.scale
        k, v = (x[seen, head].double()[None] for x in (self._inputs.k_TGD, self._inputs.v_TGD))
        return reference, rows, seen, Chunk(q, k, v, None, visible[:, seen], problem.scale)


def _rounding(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rounding error of x in the dtype."""
    return x.to(dtype).double() - x
