"""The measurement of a context-parallel cell by all its ranks: available → supported → prepared → inputs →
right → timed → memory.

All ranks make the same calls and the same decisions: rank-local facts are gathered before any collective
decision. If a rank fails while no peer waits inside a strategy, the cell ends on all ranks with that rank's
outcome, and the group stays healthy. A rank that fails between the messages of a strategy returns at once;
its peers wait for it at most for the group's timeout.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter

from longca.core import Registry
from longca.cp import PreparedStrategy
from longca.cp.comm.backend import Comm
from longca.kernels import Forward
from longca.lab.bench.check.judge import Digests, Judge
from longca.lab.bench.check.oracle import cut, finite
from longca.lab.bench.check.plan import CheckPlan, TimedResult
from longca.lab.bench.check.shards import Shards, held_tokens
from longca.lab.bench.check.timed_calls import TimedCalls, overwrite
from longca.lab.bench.measure.failure import failure
from longca.lab.bench.measure.measurement import CellMeasurement, Referee
from longca.lab.bench.measure.memory import peak_memory, resident_bytes, tensor_bytes
from longca.lab.bench.measure.permute import Permutation
from longca.lab.bench.measure.result import Result
from longca.lab.bench.measure.timer import time_calls
from longca.lab.studies import Accuracy, Cell, Measure, Node, cell_mask, strategy_of
from longca.lab.studies.outcome import Incorrect, Ok, Outcome, Unavailable, Unsupported
from longca.lab.studies.record import Memory, Samples

T = TypeVar("T")


def measure_cp(
    cell: Cell,
    measure: Measure,
    device: torch.device,
    comm: Comm,
    *,
    seed: int = 0,
    referee: Callable[[CheckPlan], Referee] | None = None,
) -> Result:
    """The result of one cell of kind `cp`. A collective call of `cell.world` ranks. An error of the cell
    becomes an outcome, never an exception.

    All ranks return the same result unless a single one fails; the record uses that of rank 0. Costs are the
    largest over ranks.

    Args:
        seed: seed of the run, for random choices of the checks.
        referee: on rank 0, the judge of the cell; by default a judge in this process.
    """
    assert cell.world == comm.world, f"a cell of {cell.world} ranks on {comm.world}"
    measurement = _CpMeasurement(cell, measure, device, comm, seed, referee or Judge)
    try:
        outcome = measurement.run()
    except _EndedTogether as end:
        outcome = end.outcome
    except Exception as error:  # any strategy or kernel may raise anything
        outcome = failure(error, measurement.stage)
    return measurement.result(outcome)


class _EndedTogether(Exception):
    """A rank has failed, and all ranks have been notified."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class _CpMeasurement(CellMeasurement):
    def __init__(
        self,
        cell: Cell,
        measure: Measure,
        device: torch.device,
        comm: Comm,
        seed: int,
        referee: Callable[[CheckPlan], Referee],
    ) -> None:
        super().__init__(cell, measure, device)
        self.comm = comm
        self.seed = seed
        self._make_referee = referee
        self._before_bytes: int | None = None  # allocated before the strategy is prepared
        self._needed_bytes = 0  # size of attention's own tensors on this rank

    def run(self) -> Outcome:
        self.nodes = tuple(self._gathered(Node, self.nodes[0]))
        strategy = strategy_of(self.cell)
        kernel = Registry("kernel").load(self.cell.kernel)
        unavailable = strategy.available(self.device.type) or kernel.available(self.device.type)
        for rank, reason in enumerate(self.comm.gather(unavailable)):
            if reason is not None:
                return Unavailable(reason=f"rank {rank}: {reason}")
        mask = self._together("mask", lambda: cell_mask(self.cell), cost="mask_ms")
        self.take_mask(mask)
        if len(set(self.comm.gather(mask.digest))) > 1:
            raise RuntimeError("ranks have drawn different masks: their versions of numpy or longca differ")
        # pure, so it is the same on all ranks
        reason = strategy.refusal(mask, self.cell.call_spec, self.cell.world, kernel, self.device.type)
        if reason is not None:
            return Unsupported(reason=reason)
        with self.at("prepare"):
            self.comm.use(self.measure.messages)
        self.release_memory()
        resident = resident_bytes(self.device)
        self._before_bytes = None if resident is None else resident + self.comm.unseen_bytes
        problem = self.problem(mask)
        prepared = self._together(
            "prepare", lambda: strategy.prepare(problem, kernel, self.comm), cost="prepare_ms"
        )
        self.take_costs(prepared)
        positions = self.comm.gather_arrays(prepared.shard.positions_L)
        permutation = self._together("prepare", lambda: Permutation(positions, self.comm.rank))
        plan = self._together(
            "inputs", lambda: CheckPlan(self.cell, problem, self.seed, everything=self.measure.check == "all")
        )
        contiguous, shards = self._together(
            "inputs", lambda: self._inputs(plan, prepared, positions, permutation.mine)
        )
        with self.at("inputs"):
            self.costs["permute_ms"] = permutation.time_ms(contiguous, self.comm)
        del contiguous
        return self._check_and_time(plan, prepared, shards)

    def _check_and_time(self, plan: CheckPlan, prepared: PreparedStrategy, shards: Shards) -> Outcome:
        with self.at("fwd"):
            forward = prepared.forward(shards.q_LHD, shards.k_LGD, shards.v_LGD)
        tensors = _forward_tensors(forward)
        if plan.problem.needs_backward:
            with self.at("bwd"):
                tensors |= zip(
                    ("dq", "dk", "dv"), prepared.backward(forward, shards.dout_checked_LHD), strict=True
                )
        self._needed_bytes = tensor_bytes(
            [*shards.tensors(), *(x for name, x in tensors.items() if name != "lse")]
        )
        reason = self._check(plan, shards, tensors)
        if reason is None:
            if plan.problem.needs_backward:
                kept = [*shards.tensors(), forward.out, *([] if forward.lse is None else [forward.lse])]
                calls = self._calls(
                    plan,
                    shards,
                    lambda: prepared.backward(forward, shards.dout_LHD),
                    kept,
                    lambda grads: dict(zip(("dq", "dk", "dv"), grads, strict=True)),
                )
            else:
                calls = self._calls(
                    plan,
                    shards,
                    lambda: prepared.forward(shards.q_LHD, shards.k_LGD, shards.v_LGD),
                    shards.tensors(),
                    _forward_tensors,
                )
                del forward
            overwrite(tensors.values(), calls.kept)
            del tensors
            reason = self._time(plan, prepared, shards, calls)
        self._merge_facts()
        return Ok() if reason is None else Incorrect(reason=reason)

    def _check(self, plan: CheckPlan, shards: Shards, tensors: dict[str, torch.Tensor]) -> str | None:
        """The reason why the result of the checked call is wrong. Rank 0 asks the judge, and all ranks get
        the answer."""
        with self.at("oracle"):
            parts = {
                name: self.comm.gather_rows(x, [len(part) for part in shards.positions])
                for name, x in tensors.items()
            }
            digests = self._whole_digests(shards, checked=True)

        def judged() -> str | None:
            if self.comm.rank:
                return None
            whole = {
                name: _in_order(of_ranks, shards.positions)
                for name, of_ranks in parts.items()
                if of_ranks is not None
            }
            are_finite = {name: bool(flag) for name, flag in finite(whole).items()}
            self.referee = self._make_referee(plan)
            return self._judged(
                lambda: self.referee.check(cut(plan.scope, plan.ratio, whole), are_finite, digests)
            )

        return self._agreed(judged)

    def _agreed(self, judged: Callable[[], str | None]) -> str | None:
        """The reason that rank 0 finds, on all ranks, with the accuracy."""
        before_ms = self.costs.get("oracle_ms", 0.0)
        reason = self._together("oracle", judged, cost="oracle_ms")
        self.costs["oracle_ms"] += before_ms
        self.accuracy = self._gathered(Accuracy | None, self.accuracy)[0]
        return self._gathered(str | None, reason)[0]

    def _calls(
        self,
        plan: CheckPlan,
        shards: Shards,
        call: Callable[[], Any],
        kept: list[torch.Tensor],
        tensors: Callable[[Any], dict[str, torch.Tensor]],
    ) -> TimedCalls:
        [seed, *_] = self.comm.gather(random.SystemRandom().getrandbits(48))  # all ranks keep the same calls
        return TimedCalls(
            call,
            tensors=tensors,
            raw=lambda result: tensors(result).values(),
            kept=kept,
            change=lambda number: shards.change(plan, number),
            cut=lambda number, drawn, x: shards.cut(plan, number, drawn, x),
            chance=random.Random(seed),
        )

    def _whole_digests(self, shards: Shards, *, checked: bool) -> Digests:
        """Digests of the inputs of all ranks together."""
        of_ranks = self.comm.gather(shards.digests(checked=checked))
        return {name: sum(digests[name] for digests in of_ranks) % (1 << 64) for name in of_ranks[0]}

    def _inputs(
        self, plan: CheckPlan, prepared: PreparedStrategy, positions: list[np.ndarray], part: range
    ) -> tuple[list[torch.Tensor], Shards]:
        """q, k and v of a contiguous part, and all inputs of this rank's own tokens."""
        inputs = plan.inputs()
        contiguous = [x[part.start : part.stop].clone() for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD)]
        return contiguous, Shards.of(plan, inputs, prepared.shard.positions_L, positions)

    def _time(
        self, plan: CheckPlan, prepared: PreparedStrategy, shards: Shards, calls: TimedCalls
    ) -> str | None:
        self.release_memory()
        with self.at(self.cell.direction):
            samples = time_calls(
                calls, self.measure, self.device, before_each=self.comm.barrier, agree=self.comm.largest
            )
            self.comm.barrier()
            before = self.comm.moved_bytes
            memory = self._above_shards(peak_memory(calls.plain, self.device))
            if prepared.counts_bytes:
                self.costs["moved_bytes"] = float(self.comm.moved_bytes - before)
        of_ranks = list(
            zip(self._gathered(Samples, samples), self._gathered(Memory | None, memory), strict=True)
        )
        enqueue_ms = [part.enqueue_ms for part, _ in of_ranks if part.enqueue_ms is not None]
        self.samples = samples.model_copy(
            update={
                "time_ms": tuple(part.time_ms[0] for part, _ in of_ranks),
                "enqueue_ms": max(enqueue_ms, default=None),
            }
        )
        self.memory = _all_ranks([part for _, part in of_ranks])
        with self.at("oracle"):
            digests = self._whole_digests(shards, checked=False)
            timed = [self._whole_timed(plan, shards, result) for result in calls.results()]
        return self._agreed(
            lambda: (
                None
                if self.comm.rank
                else self._judged(lambda: self.referee.check_timed(timed, digests, calls.number))
            )
        )

    def _whole_timed(self, plan: CheckPlan, shards: Shards, result: TimedResult) -> TimedResult:
        """The parts of a timed call that are checked, of all ranks together; on rank 0."""
        are_finite = self.comm.gather(result.are_finite)
        parts = []
        for timed, mine in zip(plan.judged_parts(result), result.parts, strict=True):
            whole = {}
            for name, x in mine.items():
                tokens = timed.keys if name in ("dk", "dv") else timed.part.rows
                held = [held_tokens(tokens, positions)[1] for positions in shards.positions]
                of_ranks = self.comm.gather_rows(x, [len(numbers) for numbers in held])
                if of_ranks is not None:
                    whole[name] = torch.cat(of_ranks)[
                        torch.from_numpy(np.argsort(np.concatenate(held))).to(x.device)
                    ]
            parts.append(whole)
        all_finite = {name: all(flags[name] for flags in are_finite) for name in result.are_finite}
        return TimedResult(result.call, parts, all_finite, drawn=result.drawn)

    def _above_shards(self, memory: Memory | None) -> Memory | None:
        if memory is None or self._before_bytes is None:
            return memory
        peak_bytes = memory.absolute_peak_bytes[0] + self.comm.unseen_bytes
        above_bytes = peak_bytes - self._before_bytes - self._needed_bytes
        return memory.model_copy(
            update={"absolute_peak_bytes": (peak_bytes,), "above_shards_bytes": (max(above_bytes, 0),)}
        )

    def _together(self, stage: str, work: Callable[[], T], cost: str | None = None) -> T:
        """Do local work, and notify the other ranks of a failure. Raises _EndedTogether if it failed on any
        rank."""
        results: list[T] = []
        outcome = None
        try:
            with self.at(stage, cost):
                results.append(work())
        except Exception as error:
            outcome = failure(error, stage)
        for rank, of_rank in enumerate(self._gathered(Outcome | None, outcome)):
            if of_rank is not None:
                self.notes += (f"rank {rank} failed at: {stage}",)
                raise _EndedTogether(of_rank)
        return results[0]

    def _gathered(self, kind: Any, mine: Any) -> list[Any]:
        """The values of all ranks, of this type of the record's schema."""
        adapter = TypeAdapter(kind)
        return [
            adapter.validate_python(value)
            for value in self.comm.gather(adapter.dump_python(mine, mode="json"))
        ]

    def _merge_facts(self) -> None:
        """Replace this rank's costs by the largest over ranks, and its notes by those of all ranks."""
        facts = self.comm.gather([self.costs, self.notes])
        names = dict.fromkeys(name for costs, _ in facts for name in costs)
        self.costs = {name: max(costs[name] for costs, _ in facts if name in costs) for name in names}
        self.notes = tuple(dict.fromkeys(note for _, notes in facts for note in notes))


def _forward_tensors(forward: Forward) -> dict[str, torch.Tensor]:
    return {"out": forward.out} | ({} if forward.lse is None else {"lse": forward.lse})


def _in_order(parts: list[torch.Tensor], positions: list[np.ndarray]) -> torch.Tensor:
    """Reorders the rows of all ranks to the order of the whole sequence."""
    rows = torch.cat(parts)
    whole = torch.empty_like(rows)
    whole[torch.from_numpy(np.concatenate(positions)).to(rows.device)] = rows
    return whole


def _all_ranks(memories: list[Memory | None]) -> Memory | None:
    """The memory of all ranks for the record; None if unknown on some rank."""
    known = [memory for memory in memories if memory is not None]
    if len(known) < len(memories):
        return None
    return Memory(
        peak_bytes=tuple(memory.peak_bytes[0] for memory in known),
        source=known[0].source,
        absolute_peak_bytes=tuple(memory.absolute_peak_bytes[0] for memory in known),
        above_shards_bytes=tuple(part for memory in known for part in memory.above_shards_bytes),
    )
