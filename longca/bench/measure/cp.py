"""The measurement of a context-parallel cell by all its ranks: available → supported → prepared → inputs → right → timed → memory.

All ranks make the same calls and the same decisions: facts that only one rank knows are gathered first. If a rank fails while no peer
waits inside a strategy, the cell ends on all ranks with that rank's outcome, and the group stays healthy. A rank that fails between
the messages of a strategy returns at once; its peers wait for it no longer than the group's timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter

from longca.bench.check.inputs import input_seed, make_inputs
from longca.bench.check.oracle import Oracle, wrong
from longca.bench.check.scope import affordable
from longca.bench.measure.failure import failure
from longca.bench.measure.measurement import CellMeasurement
from longca.bench.measure.memory import peak_memory, resident_bytes, tensor_bytes
from longca.bench.measure.permute import Permutation
from longca.bench.measure.result import Result
from longca.bench.measure.timer import time_calls
from longca.core.cell import Cell
from longca.core.plugin import Registry
from longca.core.record import Accuracy, Incorrect, Memory, Node, Ok, Outcome, Samples, Unavailable, Unsupported
from longca.core.study import Measure
from longca.cp.comm.backend import Comm
from longca.cp.contract import PreparedStrategy, strategy_of
from longca.kernels.contract import Problem
from longca.masks.build import cell_mask

T = TypeVar("T")


def measure_cp(cell: Cell, measure: Measure, device: torch.device, comm: Comm) -> Result:
    """The result of one cell of kind `cp`. All `cell.world` ranks call this. An error of the cell becomes an outcome, never an exception.

    All ranks return the same result unless one fails alone; the record is made from rank 0's. Costs are the largest over ranks.
    """
    assert cell.world == comm.world, f"a cell of {cell.world} ranks on {comm.world}"
    measurement = _CpMeasurement(cell, measure, device, comm)
    try:
        outcome = measurement.run()
    except _EndedTogether as end:
        outcome = end.outcome
    except Exception as error:  # any strategy or kernel may raise anything
        outcome = failure(error, measurement.stage)
    return measurement.result(outcome)


class _EndedTogether(Exception):
    """A rank has failed, and all ranks know it."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


@dataclass(frozen=True)
class _Shards:
    """One rank's part of the inputs. L tokens on this rank."""

    q_LHD: torch.Tensor
    k_LGD: torch.Tensor
    v_LGD: torch.Tensor
    dout_LHD: torch.Tensor
    dout_checked_LHD: torch.Tensor  # for the check: `Oracle.dout_THD`


class _CpMeasurement(CellMeasurement):
    def __init__(self, cell: Cell, measure: Measure, device: torch.device, comm: Comm) -> None:
        super().__init__(cell, measure, device)
        self.comm = comm
        self._before_bytes: int | None = None  # allocated before the strategy is prepared
        self._needed_bytes = 0  # size of the tensors that attention itself needs on this rank

    def run(self) -> Outcome:
        self.nodes = tuple(self._gathered(Node, self.nodes[0]))
        strategy, kernel = strategy_of(self.cell), Registry("kernel").load(self.cell.kernel)
        unavailable = strategy.available(self.device.type) or kernel.available(self.device.type)
        for rank, reason in enumerate(self.comm.gather(unavailable)):
            if reason is not None:
                return Unavailable(reason=f"rank {rank}: {reason}")
        mask = self._together("mask", lambda: cell_mask(self.cell), cost="mask_ms")
        self.take_mask(mask)
        if len(set(self.comm.gather(mask.digest))) > 1:
            raise RuntimeError("ranks have drawn different masks: their versions of numpy or longca differ")
        reason = strategy.refusal_with(mask, self.cell, kernel, self.device.type)  # pure, so it is the same on all ranks
        if reason is not None:
            return Unsupported(reason=reason)
        with self.at("prepare"):
            self.comm.use(self.measure.messages)
        self.release_memory()
        resident = resident_bytes(self.device)
        self._before_bytes = None if resident is None else resident + self.comm.unseen_bytes
        problem = self.problem(mask)
        prepared = self._together("prepare", lambda: strategy.prepare(problem, kernel, self.comm), cost="prepare_ms")
        self.take_costs(prepared)
        positions = self.comm.gather_arrays(prepared.shard.positions_L)
        permutation = self._together("prepare", lambda: Permutation(positions, self.comm.rank))
        contiguous, shards = self._together("inputs", lambda: self._shards(problem, prepared, permutation.mine))
        with self.at("inputs"):
            self.costs["permute_ms"] = permutation.time_ms(contiguous, self.comm)
        del contiguous
        return self._check_and_time(problem, prepared, positions, shards)

    def _check_and_time(self, problem: Problem, prepared: PreparedStrategy, positions: list[np.ndarray], shards: _Shards) -> Outcome:
        with self.at("fwd"):
            forward = prepared.forward(shards.q_LHD, shards.k_LGD, shards.v_LGD)
        found = {"out": forward.out} | ({} if forward.lse is None else {"lse": forward.lse})
        if problem.needs_backward:
            with self.at("bwd"):
                found |= zip(("dq", "dk", "dv"), prepared.backward(forward, shards.dout_checked_LHD), strict=True)
        self._needed_bytes = tensor_bytes([*vars(shards).values(), *(x for name, x in found.items() if name != "lse")])
        self.accuracy = self._judge(problem, positions, found)
        reason = wrong(self.accuracy)
        if reason is None:
            del found
            if problem.needs_backward:
                self._time(prepared, lambda: prepared.backward(forward, shards.dout_LHD))
            else:
                del forward
                self._time(prepared, lambda: prepared.forward(shards.q_LHD, shards.k_LGD, shards.v_LGD))
        self._merge_facts()
        return Ok() if reason is None else Incorrect(reason=reason)

    def _shards(self, problem: Problem, prepared: PreparedStrategy, part: range) -> tuple[list[torch.Tensor], _Shards]:
        """q, k and v of a contiguous part, and all inputs of this rank's own tokens."""
        oracle = self._oracle(problem)
        mine, inputs = torch.from_numpy(prepared.shard.positions_L).to(self.device), oracle.inputs
        contiguous = [x[part.start:part.stop].clone() for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD)]
        return contiguous, _Shards(*(x[mine] for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD, oracle.dout_THD)))

    def _oracle(self, problem: Problem) -> Oracle:
        return Oracle(problem, make_inputs(self.cell, self.device), scope=affordable(problem, input_seed(self.cell)))

    def _judge(self, problem: Problem, positions: list[np.ndarray], found: dict[str, torch.Tensor]) -> Accuracy:
        """The accuracy of the whole result. Rank 0 computes it, all ranks get it."""
        with self.at("oracle"):
            parts = {name: self.comm.gather_rows(x, [len(part) for part in positions]) for name, x in found.items()}

        def judge() -> Accuracy | None:
            if self.comm.rank:
                return None
            whole = {name: _in_order(of_ranks, positions) for name, of_ranks in parts.items() if of_ranks is not None}
            grads = (whole["dq"], whole["dk"], whole["dv"]) if problem.needs_backward else None
            return self._oracle(problem).judge(whole["out"], whole.get("lse"), grads)

        return self._gathered(Accuracy | None, self._together("oracle", judge, cost="oracle_ms"))[0]

    def _time(self, prepared: PreparedStrategy, call: Callable[[], object]) -> None:
        self.release_memory()
        with self.at(self.cell.direction):
            samples = time_calls(call, self.measure, self.device, before_each=self.comm.barrier, agree=self.comm.any)
            self.comm.barrier()
            before = self.comm.moved_bytes
            memory = self._above_shards(peak_memory(call, self.device))
            if prepared.counts_bytes:
                self.costs["moved_bytes"] = float(self.comm.moved_bytes - before)
        of_ranks = list(zip(self._gathered(Samples, samples), self._gathered(Memory | None, memory), strict=True))
        enqueue_ms = [part.enqueue_ms for part, _ in of_ranks if part.enqueue_ms is not None]
        self.samples = samples.model_copy(update={"time_ms": tuple(part.time_ms[0] for part, _ in of_ranks),
                                                  "enqueue_ms": max(enqueue_ms, default=None)})
        self.memory = _all_ranks([part for _, part in of_ranks])

    def _above_shards(self, memory: Memory | None) -> Memory | None:
        if memory is None or self._before_bytes is None:
            return memory
        peak_bytes = memory.absolute_peak_bytes[0] + self.comm.unseen_bytes
        above_bytes = peak_bytes - self._before_bytes - self._needed_bytes
        return memory.model_copy(update={"absolute_peak_bytes": (peak_bytes,), "above_shards_bytes": (max(above_bytes, 0),)})

    def _together(self, stage: str, work: Callable[[], T], cost: str | None = None) -> T:
        """Do this rank's own work and tell the other ranks if it failed. Raises _EndedTogether if it failed on any rank."""
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
        return [adapter.validate_python(value) for value in self.comm.gather(adapter.dump_python(mine, mode="json"))]

    def _merge_facts(self) -> None:
        """Replace this rank's costs by the largest over ranks, and its notes by those of all ranks."""
        facts = self.comm.gather([self.costs, self.notes])
        names = dict.fromkeys(name for costs, _ in facts for name in costs)
        self.costs = {name: max(costs[name] for costs, _ in facts if name in costs) for name in names}
        self.notes = tuple(dict.fromkeys(note for _, notes in facts for note in notes))


def _in_order(parts: list[torch.Tensor], positions: list[np.ndarray]) -> torch.Tensor:
    """Puts the rows of all ranks into the order of the whole sequence."""
    rows = torch.cat(parts)
    whole = torch.empty_like(rows)
    whole[torch.from_numpy(np.concatenate(positions)).to(rows.device)] = rows
    return whole


def _all_ranks(memories: list[Memory | None]) -> Memory | None:
    """The memory of all ranks in one record; None if it is unknown on some rank."""
    known = [memory for memory in memories if memory is not None]
    if len(known) < len(memories):
        return None
    return Memory(peak_bytes=tuple(memory.peak_bytes[0] for memory in known), source=known[0].source,
                  absolute_peak_bytes=tuple(memory.absolute_peak_bytes[0] for memory in known),
                  above_shards_bytes=tuple(part for memory in known for part in memory.above_shards_bytes))
