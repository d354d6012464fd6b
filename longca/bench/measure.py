"""One kernel cell, measured: available → supported → inputs → prepared → right → timed → memory.

What a cell does, it does to its own result: whatever is raised here becomes an outcome, with what was known by then.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from longca.bench.environment import node, software
from longca.bench.failure import failure
from longca.bench.inputs import DTYPES, Inputs, input_seed, make_inputs
from longca.bench.memory import peak_memory
from longca.bench.oracle import Oracle, wrong
from longca.bench.result import Result
from longca.bench.scope import affordable
from longca.bench.timer import time_calls
from longca.core.cell import Cell
from longca.core.plugin import Registry
from longca.core.record import Accuracy, Incorrect, MaskFacts, Memory, Ok, Outcome, Samples, Unavailable, Unsupported
from longca.core.study import Measure
from longca.kernels.contract import Forward, Kernel, Prepared, Problem
from longca.masks.build import cell_mask
from longca.masks.mask import Mask

CONTROL_BUDGET = 0.05  # of the nominal duration


def measure_kernel(cell: Cell, measure: Measure, device: torch.device, kernel: Kernel | None = None) -> Result:
    """The result of one cell of kind `kernel`. Never raises for what the cell does.

    Args:
        kernel: to measure instead of the one that the registry has under the cell's name.
    """
    trial = _Trial(cell, measure, device)
    try:
        _release_memory(device)
        outcome = trial.run(kernel or Registry("kernel").load(cell.kernel))
    except Exception as error:  # any kernel may raise anything
        outcome = failure(error, trial.stage)
    return trial.result(outcome)


def mask_facts(mask: Mask) -> MaskFacts:
    """What a record keeps of the mask that was used."""
    return MaskFacts(digest=mask.digest, area=mask.area, num_groups=mask.num_groups, num_bands=mask.traits.num_bands,
                     drawn=mask.drawn)


class _Trial:
    """A cell on its way: what is known so far."""

    def __init__(self, cell: Cell, measure: Measure, device: torch.device) -> None:
        self.cell, self.measure, self.device = cell, measure, device
        self.stage = "mask"
        self.costs: dict[str, float] = {}
        self.notes: tuple[str, ...] = ()
        self.mask: MaskFacts | None = None
        self.samples: Samples | None = None
        self.accuracy: Accuracy | None = None
        self.memory: Memory | None = None
        self.nodes, self.software = (node(device),), software()

    def result(self, outcome: Outcome) -> Result:
        timed = outcome.status == "ok"
        return Result(outcome=outcome, samples=self.samples if timed else None, accuracy=self.accuracy,
                      memory=self.memory if timed else None, mask=self.mask, costs=self.costs, notes=self.notes,
                      nodes=self.nodes, software=self.software)

    def run(self, kernel: Kernel) -> Outcome:
        reason = kernel.available(self.device.type)
        if reason is not None:
            return Unavailable(reason=reason)
        with self._stage("mask", cost="mask_ms"):
            mask = cell_mask(self.cell)
            self.mask = mask_facts(mask)
        reason = kernel.supports(self.cell, mask.traits, self.device.type)
        if reason is not None:
            return Unsupported(reason=reason)
        problem = Problem(mask, self.cell.num_q_heads, self.cell.num_kv_heads, self.cell.head_dim, DTYPES[self.cell.dtype],
                          self.device, needs_backward=self.cell.direction == "bwd")
        with self._stage("inputs"):
            inputs = make_inputs(self.cell, self.device)
        with self._stage("prepare", cost="prepare_ms"):
            prepared = kernel.prepare(problem)
        self._take_costs(prepared)
        with self._stage("inputs"):
            call, check = self._ready(problem, prepared, inputs)
        nominal_ms = kernel.nominal_ms(self.cell)
        return self._attention(call, check) if nominal_ms is None else self._control(call, nominal_ms)

    def _take_costs(self, prepared: Prepared) -> None:
        prepare_ms = self.costs.pop("prepare_ms")
        self.costs |= {"plan_ms": prepare_ms - prepared.costs.get("compile_ms", 0.0), **prepared.costs}
        self.notes = tuple(prepared.notes)

    def _ready(self, problem: Problem, prepared: Prepared,
               inputs: Inputs) -> tuple[Callable[[], object], Callable[[], Accuracy]]:
        """The call to time, and the check that must pass before."""
        q, k, v = (prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD))
        oracle = Oracle(problem, inputs, scope=affordable(problem, input_seed(self.cell)))
        if not problem.needs_backward:
            return (lambda: prepared.forward(q, k, v)), lambda: self._judge(oracle, prepared, lambda: prepared.forward(q, k, v))
        dout = prepared.to_layout(inputs.dout_THD)
        with self._stage("fwd"):
            forward = prepared.forward(q, k, v)
        return (lambda: prepared.backward(forward, dout)), lambda: self._judge(oracle, prepared, lambda: forward)

    def _judge(self, oracle: Oracle, prepared: Prepared, make: Callable[[], Forward]) -> Accuracy:
        with self._stage("fwd"):
            forward = make()
            out_THD = prepared.from_layout(forward.out)
            lse_TH = None if forward.lse is None else prepared.lse_from_layout(forward.lse)
        grads = None
        if oracle.problem.needs_backward:
            with self._stage("bwd"):
                found = prepared.backward(forward, prepared.to_layout(oracle.dout_THD))
                dq, dk, dv = (prepared.from_layout(x) for x in found)
                grads = dq, dk, dv
        with self._stage("oracle", cost="oracle_ms"):
            return oracle.judge(out_THD, lse_TH, grads)

    def _attention(self, call: Callable[[], object], check: Callable[[], Accuracy]) -> Outcome:
        self.accuracy = check()
        reason = wrong(self.accuracy)
        if reason is not None:
            return Incorrect(reason=reason)
        _release_memory(self.device)
        with self._stage(self.cell.direction):
            self.samples = time_calls(call, self.measure, self.device)
            self.memory = peak_memory(call, self.device)
        return Ok()

    def _control(self, call: Callable[[], object], nominal_ms: float) -> Outcome:
        with self._stage(self.cell.direction):
            self.samples = time_calls(call, self.measure, self.device)
        error = abs(statistics.median(self.samples.time_ms[0]) - nominal_ms) / nominal_ms
        self.accuracy = Accuracy(reference="nominal duration", scope="all", relative={"time": error}, budget={"time": CONTROL_BUDGET})
        reason = wrong(self.accuracy)
        return Ok() if reason is None else Incorrect(reason=reason)

    @contextmanager
    def _stage(self, name: str, cost: str | None = None) -> Iterator[None]:
        """Names what is going on, for an outcome; waits for the device, so that an error shows in the stage that made it."""
        before, self.stage = self.stage, name
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if cost is not None:
            self.costs[cost] = (time.perf_counter() - start) * 1e3
        self.stage = before


def _release_memory(device: torch.device) -> None:
    """Back to the device what earlier work only keeps for reuse."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
