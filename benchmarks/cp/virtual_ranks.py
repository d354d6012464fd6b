"""Times all ranks of a strategy on one device, one rank after another, and interpolates the ranks that were
not timed.

Shapes: P ranks of a ring, T steps of their plan. Ranks of a group that run the same calls are one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.cp.schedule import describe_chunks
from longca.cp.schedule.planner import UnitCosts

if TYPE_CHECKING:
    from benchmarks.cp.step_times import Clock
    from longca.cp.schedule import WorkPartition
    from longca.cp.schedule.plan import Plan
    from longca.kernels import Problem

FEWEST_RANKS = 2  # timed even if the time is over
DIRECTIONS = ("fwd", "bwd")


@dataclass(frozen=True)
class PartKey:
    """The facts that ranks share if they run the same calls for a chunk of heads."""

    groups: range
    num_q: int
    local_kv: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A chunk of heads on the ranks of a ring."""

    plan: Plan
    problem: Problem
    kernels: dict[str, np.ndarray]
    """by direction, (P, T) seconds, of the ranks that have been timed"""

    @cached_property
    def pairs(self) -> np.ndarray:
        """Visible pairs (P, T), with those that `longca.cp.schedule.planner` adds for the ends of rows."""
        found = self.plan.step_areas + UnitCosts.end_pairs * self.plan.step_band_rows
        return np.where(self.plan.step_areas > 0, found, 0).astype(float)

    def filled(self, direction: str, timed: np.ndarray) -> np.ndarray:
        """Returns all kernels' times; ranks that were not timed are interpolated by pairs."""
        kernels = self.kernels[direction].copy()
        some = self.pairs[timed] > 0
        kernels[~timed] = interpolated(self.pairs[~timed], self.pairs[timed][some], kernels[timed][some])
        return kernels


class VirtualRanks:
    """One strategy on one problem. Steps are timed, so backward has steps as well, even where the strategy
    itself would have all keys at once."""

    def __init__(self, work: WorkPartition, problem: Problem, clock: Clock) -> None:
        self.work = work = replace(work, backward_at_once=False)
        self._problem = problem
        self._clock = clock
        self._keys: dict[tuple[int, int], PartKey] = {}
        """(chunk, number in the group) → its part"""
        self._parts: dict[PartKey, Part] = {}
        self.timed = np.zeros(work.mesh.ring, dtype=bool)
        for index, chunk in enumerate(work.chunks):
            for number, share in enumerate(chunk.heads.ranks):
                if share.q:
                    key = self._keys[index, number] = PartKey(
                        work.mask_groups(chunk, number), len(share.q), share.local_kv
                    )
                    if key not in self._parts:
                        plan = work.plan_of(key.groups)
                        part = replace(
                            problem,
                            mask=plan.partition.mask,
                            num_q_heads=key.num_q,
                            num_kv_heads=len(share.kv),
                        )
                        self._parts[key] = Part(
                            plan, part, {way: np.zeros(plan.step_areas.shape) for way in DIRECTIONS}
                        )

    @property
    def how(self) -> str:
        """Schedule, heads, chunks and sharding, as the notes of a record have them."""
        mesh = self.work.mesh
        plan = self.work.plan
        facts = [
            f"{plan.schedule} of {mesh.ring}" if mesh.ring > 1 else "",
            f"heads among {mesh.heads}" if mesh.heads > 1 else "",
            f"in chunks of {describe_chunks(self.work.chunks)}" if len(self.work.chunks) > 1 else "",
            plan.sharding.name,
        ]
        return ", ".join(filter(None, facts))

    def time(self, deadline: float) -> None:
        """Times rank by rank until the deadline on the monotonic clock, but never fewer than `FEWEST_RANKS`.

        The rank with most to compute comes first, then the median one, then the others from most to least.
        """
        load = sum((part.pairs.sum(axis=1) for part in self._parts.values()), np.zeros(len(self.timed)))
        most = np.argsort(-load, kind="stable").tolist()
        order = list(dict.fromkeys([most[0], most[len(most) // 2], *most]))
        for done, rank in enumerate(order):
            if done >= FEWEST_RANKS and time.monotonic() > deadline:
                return
            self._time(rank)
            self.timed[rank] = True

    def _time(self, rank: int) -> None:
        done = set()
        for (position, number), key in self._keys.items():
            if key in done:
                continue
            part = self._parts[key]
            if self.work.heads_only:
                steps = {0: self._clock.heads(part.problem, self.work.chunks[position].heads.ranks[number])}
            else:
                steps = self._clock.steps(part.plan, rank, part.problem)
            for step, seconds in steps.items():
                for direction, value in zip(DIRECTIONS, seconds, strict=True):
                    part.kernels[direction][rank, step] = value
            done.add(key)

    def step_s(self, direction: str) -> dict[tuple[int, int], np.ndarray]:
        """Returns all that ranks compute, in seconds, by chunk and number in the group."""
        seconds = {}
        for (position, number), key in self._keys.items():
            step_s = self._parts[key].filled(direction, self.timed)
            if not self.work.heads_only:
                self._add_passes(step_s, self._parts[key], direction)
            if self.work.mesh.heads > 1:
                of_rank = sum(len(chunk.q[number]) for chunk in self.work.chunks)
                step_s[:, 0] += self._packing_s(direction) * key.num_q / of_rank
            seconds[position, number] = step_s
        return seconds

    def _add_passes(self, step_s: np.ndarray, part: Part, direction: str) -> None:
        """Adds the elementwise work beside the calls that are timed."""
        passes = self._clock.passes(part.problem)
        plan = part.plan
        rows = plan.sharding.num_tokens
        last = plan.num_steps - 1
        if direction == "fwd":
            step_s[:, last] += rows * passes.result_s * ((plan.step_areas > 0).sum(axis=1) > 1)
            return
        step_s[:, last] += rows * passes.sums_s
        for number in range(1, plan.num_steps):  # what has come home after a step is added up after the next
            home = [sum(map(len, plan.dkv_receives(rank, number))) for rank in range(plan.world)]
            step_s[:, min(number + 1, last)] += np.array(home) * passes.add_key_s

    def _packing_s(self, direction: str) -> float:
        """Estimates packing heads for other ranks and for the way home: q, k, v and out twice; or dout, and
        dq, dk and dv twice."""
        problem = self._problem
        heads = 3 * problem.num_q_heads + (2 if direction == "fwd" else 4) * problem.num_kv_heads
        num_bytes = (
            heads * problem.mask.seqlen_q / self.work.mesh.world * problem.head_dim * problem.dtype.itemsize
        )
        return num_bytes * self._clock.copy_byte_s(problem)

    def timed_steps(self) -> list[dict[str, Any]]:
        """Returns the timed steps; of ranks of a group that run the same calls the first."""
        first = {key: where for where, key in reversed(self._keys.items())}
        return [
            {
                "chunk": position,
                "group_rank": number,
                "ring_rank": rank,
                "step": step,
                "q_heads": key.num_q,
                "kv_heads": len(key.local_kv),
                "area": int(part.plan.step_areas[rank, step]),
                "pairs": part.pairs[rank, step],
                **{f"{direction}_ms": part.kernels[direction][rank, step] * 1e3 for direction in DIRECTIONS},
            }
            for key, (position, number) in first.items()
            for part in [self._parts[key]]
            for rank in np.flatnonzero(self.timed).tolist()
            for step in np.flatnonzero(part.plan.step_areas[rank]).tolist()
        ]


def interpolated(wanted: np.ndarray, pairs: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Interpolates seconds by pairs; beyond the fewest and the most timed pairs in proportion, and 0 if
    nothing was timed."""
    if not len(pairs):
        return np.zeros(wanted.shape)
    order = np.argsort(pairs, kind="stable")
    inside = np.interp(wanted, pairs[order], seconds[order])
    return inside * wanted / np.clip(wanted, pairs[order[0]], pairs[order[-1]])
