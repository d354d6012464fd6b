"""The measurement of a kernel cell: available → supported → prepared → inputs → right → timed → memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from longca.bench.check.inputs import input_seed, make_inputs
from longca.bench.check.oracle import Oracle, wrong
from longca.bench.check.scope import affordable
from longca.bench.measure.failure import failure
from longca.bench.measure.latest import LatestMasks, LatestReferences
from longca.bench.measure.measurement import CellMeasurement
from longca.bench.measure.memory import peak_memory
from longca.bench.measure.result import Result
from longca.bench.measure.timer import time_calls, time_sustained
from longca.core.cell import Cell
from longca.core.plugin import BrokenPlugin, Registry
from longca.core.record import Accuracy, Incorrect, Ok, Outcome, Unavailable, Unsupported
from longca.core.study import Measure
from longca.kernels.contract import Forward, Prepared, Problem
from longca.kernels.control import PreparedControl


def measure_kernel(cell: Cell, measure: Measure, device: torch.device, masks: LatestMasks | None = None,
                   references: LatestReferences | None = None) -> Result:
    """The result of one cell of kind `kernel`. An error of the cell becomes an outcome, never an exception."""
    measurement = _KernelMeasurement(cell, measure, device, masks or LatestMasks(), references or LatestReferences())
    try:
        outcome = measurement.run()
    except Exception as error:  # any kernel may raise anything
        outcome = failure(error, measurement.stage)
    return measurement.result(outcome)


class _KernelMeasurement(CellMeasurement):
    def __init__(self, cell: Cell, measure: Measure, device: torch.device, masks: LatestMasks, references: LatestReferences) -> None:
        super().__init__(cell, measure, device)
        self.masks, self.references = masks, references

    def run(self) -> Outcome:
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
                raise BrokenPlugin(f"Plug-in '{kernel.path}' cannot be used", todo="Mend or remove the file",
                                   why=f"prepare returned a {type(prepared).__name__}; it must return a Prepared")
        self.take_costs(prepared)
        if isinstance(prepared, PreparedControl):
            return self._measure_control(prepared)
        return self._measure_attention(problem, prepared)

    def _measure_attention(self, problem: Problem, prepared: Prepared) -> Outcome:
        with self.at("inputs"):
            scope = affordable(problem, input_seed(self.cell))
            oracle = Oracle(problem, make_inputs(self.cell, self.device), scope=scope,
                            reference=self.references.get(self.cell, problem, scope))
            inputs = oracle.inputs
            q, k, v, dout = (prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD))
        with self.at("fwd"):
            forward = prepared.forward(q, k, v)
        self.accuracy = self._judge(oracle, prepared, forward)
        reason = wrong(self.accuracy)
        if reason is not None:
            return Incorrect(reason=reason)
        del oracle, inputs
        if problem.needs_backward:
            self._time(lambda: prepared.backward(forward, dout))
        else:
            del forward, dout
            self._time(lambda: prepared.forward(q, k, v))
        return Ok()

    def _judge(self, oracle: Oracle, prepared: Prepared, forward: Forward) -> Accuracy:
        grads = None
        if oracle.problem.needs_backward:
            with self.at("bwd"):
                found = prepared.backward(forward, prepared.to_layout(oracle.dout_THD))
                dq, dk, dv = (prepared.from_layout(x) for x in found)
                grads = dq, dk, dv
        with self.at("oracle", cost="oracle_ms"):
            lse_TH = None if forward.lse is None else prepared.lse_from_layout(forward.lse)
            return oracle.judge(prepared.from_layout(forward.out), lse_TH, grads)

    def _time(self, call: Callable[[], object]) -> None:
        self.release_memory()
        with self.at(self.cell.direction):
            self.samples = (time_sustained if self.cell.sustained else time_calls)(call, self.measure, self.device)
            self.memory = peak_memory(call, self.device)

    def _measure_control(self, prepared: PreparedControl) -> Outcome:
        """Measure a call of known work. It is judged by its times, or by the result of the timed calls."""
        with self.at(self.cell.direction):
            self.samples = time_calls(prepared.call, self.measure, self.device)
        with self.at("oracle", cost="oracle_ms"):
            self.accuracy = prepared.judge(self.samples)
        reason = wrong(self.accuracy)
        return Ok() if reason is None else Incorrect(reason=reason)
