"""The measurement of one cell: the facts that are collected stage by stage, for kernels and context
parallelism alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from longca.kernels import Prepared, Problem
from longca.lab.bench.check.inputs import DTYPES
from longca.lab.bench.measure.environment import node, software
from longca.lab.bench.measure.latest import mask_facts
from longca.lab.bench.measure.result import Result
from longca.lab.studies import Accuracy, Cell, Measure
from longca.lab.studies.outcome import Outcome
from longca.lab.studies.record import MaskFacts, Memory, Samples
from longca.masks import Mask

if TYPE_CHECKING:
    from longca.cp import PreparedStrategy
    from longca.lab.bench.check.judge import Digests
    from longca.lab.bench.check.oracle import PartResult
    from longca.lab.bench.check.plan import TimedResult


class Referee(Protocol):
    """The judge of a cell as the measuring process sees it: `longca.lab.bench.check.judge.Judge`, or its like
    in another process."""

    @property
    def accuracy(self) -> Accuracy | None:
        """The accuracy of the result; None where the judge reports it to the runner alone."""
        ...

    def check(self, results: list[PartResult], are_finite: dict[str, bool], digests: Digests) -> str | None:
        """Judge the checked call. The reason why it is not right; None if it is."""
        ...

    def check_bits(self, runs: list[Digests]) -> str | None:
        """Judge the digests of the gradients of several backward calls on the same inputs. The reason why
        their bits differ; None if they are the same."""
        ...

    def check_timed(self, timed: list[TimedResult], digests: Digests, last_call: int) -> str | None:
        """Judge timed calls. The reason why one is not right; None if all are."""
        ...


class CellMeasurement:
    """Collects the result of a cell stage by stage. A measurement that ends early keeps the facts collected
    so far."""

    def __init__(self, cell: Cell, measure: Measure, device: torch.device) -> None:
        self.cell = cell
        self.measure = measure
        self.device = device
        self.stage = "mask"
        """the present stage: mask, inputs, prepare, oracle, fwd or bwd"""
        self.costs: dict[str, float] = {}
        self.notes: tuple[str, ...] = ()
        self.mask: MaskFacts | None = None
        self.samples: Samples | None = None
        self.accuracy: Accuracy | None = None
        self.referee: Referee
        self.memory: Memory | None = None
        self.nodes = (node(device),)
        self.software = software()

    def result(self, outcome: Outcome) -> Result:
        timed = outcome.status == "ok"
        return Result(
            outcome=outcome,
            samples=self.samples if timed else None,
            accuracy=self.accuracy,
            memory=self.memory if timed else None,
            mask=self.mask,
            costs=self.costs,
            notes=self.notes,
            nodes=self.nodes,
            software=self.software,
        )

    def problem(self, mask: Mask) -> Problem:
        """The attention call of the cell."""
        return Problem(
            mask,
            self.cell.num_q_heads,
            self.cell.num_kv_heads,
            self.cell.head_dim,
            DTYPES[self.cell.dtype],
            self.device,
            needs_backward=self.cell.direction == "bwd",
        )

    def take_mask(self, mask: Mask) -> None:
        """Keep the facts of the mask that a record has."""
        self.mask = mask_facts(mask)

    def take_costs(self, prepared: Prepared | PreparedStrategy) -> None:
        """Split the time of preparing, timed as `prepare_ms`, into compiling and planning: all that is not
        compiling is planning."""
        prepare_ms = self.costs.pop("prepare_ms")
        self.costs |= {"plan_ms": prepare_ms - prepared.costs.get("compile_ms", 0.0), **prepared.costs}
        self.notes = tuple(prepared.notes)

    def _judged(self, verdict: Callable[[], str | None]) -> str | None:
        reason = verdict()
        self.accuracy = self.referee.accuracy
        return reason

    @contextmanager
    def at(self, stage: str, cost: str | None = None) -> Iterator[None]:
        """Name the present stage, for an outcome. Waits for the device at its end, so that an error is seen
        in the stage that caused it."""
        before = self.stage
        self.stage = stage
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if cost is not None:
            self.costs[cost] = (time.perf_counter() - start) * 1e3
        self.stage = before

    def release_memory(self) -> None:
        """Release cached memory of earlier work to the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch._C._cuda_clearCublasWorkspaces()  # 32 MiB that matrix products of the oracle leave
            torch.cuda.empty_cache()
