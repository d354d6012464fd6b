"""The time model of a whole division: the ring of each chunk of heads, and between chunks the heads' own journeys.

Shapes: P ranks of a ring, T steps, N ranks of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.schedule.chunk_choice import bytes_of_head
from longca.cp.schedule.time_model import Links, Traffic, head_pipeline, timeline

if TYPE_CHECKING:
    from longca.cp.schedule.head_chunking import HeadChunk
    from longca.cp.schedule.work_partition import WorkPartition
    from longca.kernels.contract import Problem

StepTimes = Mapping[tuple[int, int], np.ndarray]
"""(number of a chunk, number in a group) → (P, T) seconds that the ranks with these heads compute in each step; none without heads"""


@dataclass(frozen=True)
class RankTimes:
    """Of each rank, (P, N) seconds each: rank p · N + n of the job is at (p, n)."""

    compute_s: np.ndarray
    free_s: np.ndarray
    """until it is done, if messages took no time: longer than it computes where it waits for other ranks"""
    total_s: np.ndarray

    @property
    def exposed(self) -> np.ndarray:
        """Share of a rank's time that messages cost; 0 for ranks that compute nothing."""
        return np.where(self.compute_s > 0, 1 - self.free_s / np.where(self.total_s > 0, self.total_s, 1), 0.0)


def division_times(division: WorkPartition, problem: Problem, steps: StepTimes, links: Links, *, backward: bool) -> RankTimes:
    """One direction of one call on all ranks."""
    free = Links(near_bytes_per_s=np.inf, far_bytes_per_s=np.inf, message_s=0.0, ranks_per_host=links.ranks_per_host)
    compute_s, free_s = _times(division, problem, steps, free, backward)
    _, total_s = _times(division, problem, steps, links, backward)
    return RankTimes(compute_s, free_s, total_s)


def _times(division: WorkPartition, problem: Problem, steps: StepTimes, links: Links, backward: bool) -> tuple[np.ndarray, np.ndarray]:
    """(seconds that each rank computes, until it is done), (P, N) each."""
    mesh = division.mesh
    compute_s, total_s = np.zeros((mesh.ring, mesh.heads)), np.zeros((mesh.ring, mesh.heads))
    traffic: dict[range, Traffic] = {}
    for number in range(mesh.heads):
        work_s = np.zeros((mesh.ring, len(division.chunks)))
        for place, chunk in enumerate(division.chunks):
            if (place, number) not in steps:
                continue
            groups = division.groups(chunk, number)
            if groups not in traffic:
                traffic[groups] = Traffic.of(division.plan_of(groups))
            key_bytes = 2 * len(chunk.heads.ranks[number].kv) * problem.head_dim * problem.dtype.itemsize
            line = timeline(traffic[groups], steps[place, number], links.byte_s(mesh.ring_of(number)) * key_bytes, links.message_s,
                            backward=backward)
            compute_s[:, number] += line.compute_s
            work_s[:, place] = line.total_s(links.beside)
        for ring_rank in range(mesh.ring):
            coming, going = _journeys(division, problem, links, ring_rank, number, backward)
            total_s[ring_rank, number] = head_pipeline(work_s[ring_rank].tolist(), coming, going, links.beside)
    return compute_s, total_s


def _journeys(division: WorkPartition, problem: Problem, links: Links, ring_rank: int, number: int, backward: bool
              ) -> tuple[list[float], list[float]]:
    """(seconds in which each chunk arrives, in which it goes home) at one rank."""
    mesh = division.mesh
    if mesh.heads == 1:
        return [0.0] * len(division.chunks), [0.0] * len(division.chunks)
    byte_s = np.delete(links.byte_s(mesh.group(ring_rank * mesh.heads + number))[number], number).mean()
    head_s = bytes_of_head(problem, int(division.plan.placement.num_tokens[ring_rank]), mesh.heads) * float(byte_s)
    heads = [_travelling(chunk, number, backward) for chunk in division.chunks]
    coming, going = ([links.message_s * (count > 0) + count * head_s for count in counts] for counts in zip(*heads, strict=True))
    return coming, going


def _travelling(chunk: HeadChunk, number: int, backward: bool) -> tuple[int, int]:
    """Heads of one tensor that come with a chunk, and that go home after it: q, k, v and out, or dout, dq, dk and dv."""
    num_q = len(chunk.q[number])
    if backward:
        return num_q, num_q + 2 * len(chunk.leaving[number])
    return num_q + 2 * len(chunk.arriving[number]), num_q
