"""The measurement of a kernel cell: available → supported → prepared → inputs → right → timed → right again →
memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from longca.core import BrokenPlugin, Registry
from longca.kernels import Forward, Prepared, Problem
from longca.kernels.control import PreparedControl
from longca.lab.bench.check.changes import WHOLE, reverse
from longca.lab.bench.check.digest import content_digest, mask_digest
from longca.lab.bench.check.judge import CHANGES_MASK, Digests, Judge
from longca.lab.bench.check.oracle import Grads, cut, finite, tensors_of, wrong
from longca.lab.bench.check.plan import NUM_BIT_RUNS, CheckPlan, tensor_of
from longca.lab.bench.check.timed_calls import TimedCalls, overwrite, require_plain
from longca.lab.bench.measure.failure import as_failed, failure
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.measurement import CellMeasurement, Referee
from longca.lab.bench.measure.memory import peak_memory
from longca.lab.bench.measure.result import Result
from longca.lab.bench.measure.timer import time_calls, time_sustained
from longca.lab.bench.measure.timing.whole_changes import slower_by
from longca.lab.studies import Accuracy, Cell, Measure
from longca.lab.studies.outcome import Implausible, Incorrect, Ok, Outcome, Unavailable, Unsupported

DIFFERENCES = "a call takes {:.1f} times as long after all of an input has changed, instead of a few rows"


def measure_kernel(
    cell: Cell,
    measure: Measure,
    device: torch.device,
    masks: LatestMasks | None = None,
    references: LatestReferences | None = None,
    *,
    seed: int = 0,
    referee: Callable[[CheckPlan], Referee] | None = None,
) -> Result:
    """The result of one cell of kind `kernel`. An error of the cell becomes an outcome, never an exception.

    Args:
        seed: seed of the run, for random choices of the checks.
        referee: the judge of the cell; by default a judge in this process, whose memory a kernel can access.
    """
    references = references or LatestReferences()
    measurement = KernelMeasurement(
        cell,
        measure,
        device,
        masks or LatestMasks(),
        seed,
        referee or (lambda plan: Judge(plan, references.get(plan))),
    )
    try:
        outcome = measurement.run()
    except Exception as error:  # any kernel may raise anything
        outcome = failure(error, measurement.stage)
        if measurement.masks.is_changed(cell):  # whatever it raised may follow from that
            outcome = as_failed(
                "ChangedMask", f"{CHANGES_MASK}; {getattr(outcome, 'message', outcome.status)}"
            )
    return measurement.result(outcome)


class KernelMeasurement(CellMeasurement):
    """The measurement of one kernel cell: complete (`run`), or in two parts with external timing between
    them."""

    calls: TimedCalls
    """the calls to time, once it is ready"""

    def __init__(
        self,
        cell: Cell,
        measure: Measure,
        device: torch.device,
        masks: LatestMasks,
        seed: int,
        referee: Callable[[CheckPlan], Referee],
    ) -> None:
        super().__init__(cell, measure, device)
        self.masks = masks
        self.seed = seed
        self._make_referee = referee
        self._given: _GivenInputs
        self._control: PreparedControl | None = None

    def run(self) -> Outcome:
        """Measure the cell."""
        outcome = self.get_ready()
        if outcome is not None:
            return outcome
        if self._control is not None:
            return self._measure_control(self._control)
        self.release_memory()
        with self.at(self.cell.direction):
            self.samples = (time_sustained if self.cell.sustained else time_calls)(
                self.calls, self.measure, self.device
            )
        return self.finish()

    def get_ready(self) -> Outcome | None:
        """Prepare the kernel and have one call judged. The outcome of a cell that ends here; None if it may
        be timed."""
        kernel = Registry("kernel").load(self.cell.kernel)
        reason = kernel.available(self.device.type)
        if reason is not None:
            return Unavailable(reason=reason)
        with self.at("mask"):
            mask, self.costs["mask_ms"] = self.masks.get(self.cell)
        self.take_mask(mask)
        reason = kernel.supports(self.cell.call_spec, mask.traits, self.device.type)
        if reason is not None:
            return Unsupported(reason=reason)
        self.release_memory()
        problem = self.problem(mask)
        with self.at("prepare", cost="prepare_ms"):
            prepared = kernel.prepare(problem)
            if not isinstance(prepared, Prepared):
                raise BrokenPlugin(
                    f"Plug-in '{kernel.path}' cannot be used",
                    todo="Mend or remove the file",
                    why=f"prepare returned a {type(prepared).__name__}; it must return a Prepared",
                )
        self.take_costs(prepared)
        if isinstance(prepared, PreparedControl):
            self._control = prepared
            return None
        return self._check_first_call(problem, prepared, kernel.deterministic)

    def finish(self) -> Outcome:
        """Measure memory and have the timed calls judged that chance has selected."""
        assert self.samples is not None
        with self.at(self.cell.direction):
            ratio = slower_by(self.calls, self._given.change_whole, self.samples, self.device)
            digests = self._given.digests()
            self.memory = peak_memory(self.calls.plain, self.device)
        judged_ms = self.costs["oracle_ms"]
        with self.at("oracle", cost="oracle_ms"):
            reason = self._judged(
                lambda: self.referee.check_timed(self.calls.results(), digests, self.calls.number)
            )
        self.costs["oracle_ms"] += judged_ms
        if reason is not None:
            return Incorrect(reason=reason)
        return Ok() if ratio is None else Implausible(reason=DIFFERENCES.format(ratio))

    def _check_first_call(self, problem: Problem, prepared: Prepared, deterministic: bool) -> Outcome | None:
        plan = CheckPlan(self.cell, problem, self.seed, everything=self.measure.check == "all")
        with self.at("oracle", cost="oracle_ms"):
            self.referee = self._make_referee(plan)
        with self.at("inputs"):
            self._given = _GivenInputs(plan, prepared)
        with self.at("fwd"):
            forward = prepared.forward(*self._given.attention)
        reason = self._check(plan, prepared, self._given, forward)
        if reason is None and problem.needs_backward and deterministic:
            reason = self._check_bits(self._given, forward)
        if reason is not None:
            return Incorrect(reason=reason)
        self.calls = self._given.calls(forward)
        return None

    def _check(
        self, plan: CheckPlan, prepared: Prepared, given: _GivenInputs, forward: Forward
    ) -> str | None:
        """The reason why the checked call is wrong; None if it is correct."""
        grads: Grads | None = None
        raw: tuple[torch.Tensor, ...] = ()
        dout = None
        require_plain((forward.out, forward.lse))
        if plan.problem.needs_backward:
            dout = given.dout_checked()
            with self.at("bwd"):
                raw = prepared.backward(forward, dout)
                require_plain(raw)
                dq, dk, dv = (prepared.from_layout(x) for x in raw)
                grads = dq, dk, dv
        with self.at("oracle", cost="oracle_ms"):
            lse_TH = None if forward.lse is None else prepared.lse_from_layout(forward.lse)
            tensors = tensors_of(prepared.from_layout(forward.out), lse_TH, grads)
            are_finite = {name: bool(flag) for name, flag in finite(tensors).items()}
            digests = given.digests() | (
                {} if dout is None else {"dout": content_digest(prepared.from_layout(dout))}
            )
            reason = self._judged(
                lambda: self.referee.check(cut(plan.scope, plan.ratio, tensors), are_finite, digests)
            )
        if not plan.problem.needs_backward:
            overwrite((forward.out, forward.lse), given.addresses)
        overwrite(raw, given.addresses | {forward.out.untyped_storage().data_ptr()})
        return reason

    def _check_bits(self, given: _GivenInputs, forward: Forward) -> str | None:
        """The reason why backward calls on the same inputs differ in bits; None if they do not."""
        backward = given.calls(forward)
        runs: list[Digests] = []
        for _ in range(NUM_BIT_RUNS):
            with self.at("bwd"):
                backward()
                runs.append({name: content_digest(grad) for name, grad in backward.tensors().items()})
                backward.after(timed=False)
        with self.at("oracle"):
            return self._judged(lambda: self.referee.check_bits(runs))

    def _measure_control(self, prepared: PreparedControl) -> Outcome:
        """Measure a call of known work. It is judged by its times, or by the result of the timed calls."""
        with self.at(self.cell.direction):
            self.samples = time_calls(prepared.call, self.measure, self.device)
        with self.at("oracle", cost="oracle_ms"):
            self.accuracy = Accuracy(**asdict(prepared.judge(self.samples.time_ms[0])))
        reason = wrong(self.accuracy)
        return Ok() if reason is None else Incorrect(reason=reason)


class _GivenInputs:
    """The inputs of a kernel in its own layout, and their changes between calls."""

    def __init__(self, plan: CheckPlan, prepared: Prepared) -> None:
        self._plan = plan
        self._prepared = prepared
        inputs = plan.inputs()
        self._own = {name: prepared.to_layout(tensor_of(inputs, name)) for name in plan.used_names}
        self._public = {name: self._view(name, tensor_of(inputs, name).shape) for name in plan.used_names}
        self._copies = {
            name: tensor_of(inputs, name).clone() for name, view in self._public.items() if view is None
        }
        self.addresses = {x.untyped_storage().data_ptr() for x in self._own.values()}

    @property
    def attention(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._own["q"], self._own["k"], self._own["v"]

    def dout_checked(self) -> torch.Tensor:
        """The output gradient of the checked call, in the kernel's layout."""
        public = self._public["dout"]
        whole = self._copies["dout"] if public is None else public
        checked = self._plan.dout_checked(whole)
        return self._own["dout"] if checked is whole else self._prepared.to_layout(checked)

    def calls(self, forward: Forward) -> TimedCalls:
        """The calls to time: of backward, if it is needed, else of forward."""
        plan = self._plan
        prepared = self._prepared
        if not plan.problem.needs_backward:
            return TimedCalls(
                lambda: prepared.forward(*self.attention),
                tensors=self._of_forward,
                raw=lambda x: (x.out, x.lse),
                change=self._change,
                cut=plan.cut_timed,
                kept=self._own.values(),
            )
        kept = [*self._own.values(), forward.out, *([] if forward.lse is None else [forward.lse])]
        return TimedCalls(
            lambda: prepared.backward(forward, self._own["dout"]),
            tensors=self._of_backward,
            raw=tuple,
            change=self._change,
            cut=plan.cut_timed,
            kept=kept,
        )

    def change_whole(self, factor: float) -> None:
        """Reverse the tokens of the input in which the timed result is linear, values or output gradients,
        and multiply it. The inverse factor undoes it."""
        name = WHOLE[self._plan.cell.direction]
        public = self._public[name]
        whole = self._copies[name] if public is None else public
        reverse(whole)
        whole.mul_(factor)
        if public is None:
            self._own[name].copy_(self._prepared.to_layout(whole))

    def digests(self) -> Digests:
        """The digests of the inputs and of the mask as they are now."""
        mask = {"mask": mask_digest(self._plan.problem.mask)}
        return {name: self._digest(name) for name in self._own} | mask

    def _of_forward(self, forward: Forward) -> dict[str, torch.Tensor]:
        lse_TH = None if forward.lse is None else self._prepared.lse_from_layout(forward.lse)
        return tensors_of(self._prepared.from_layout(forward.out), lse_TH, None)

    def _of_backward(self, grads: Grads) -> dict[str, torch.Tensor]:
        return {
            name: self._prepared.from_layout(x) for name, x in zip(("dq", "dk", "dv"), grads, strict=True)
        }

    def _view(self, name: str, shape: torch.Size) -> torch.Tensor | None:
        """The input in T × heads × D, in the memory that the kernel is given; None where that has another
        form."""
        own = self._own[name]
        public = self._prepared.from_layout(own)
        is_view = public.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        return public if is_view and public.shape == shape and public.numel() == own.numel() else None

    def _change(self, call: int) -> None:
        self._plan.expect(call)
        for name in self._plan.timed_names:
            public = self._public[name]
            if public is not None:
                self._plan.changes.apply(name, public, call)
            else:
                self._plan.changes.apply(name, self._copies[name], call)
                self._own[name].copy_(self._prepared.to_layout(self._copies[name]))

    def _digest(self, name: str) -> int:
        public = self._public[name]
        if public is not None:
            return content_digest(public)
        is_same = torch.equal(self._own[name], self._prepared.to_layout(self._copies[name]))
        return content_digest(self._copies[name]) if is_same else -1
