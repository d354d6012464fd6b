"""A rough estimate of the cost of a plan, for the choice of shardings and schedules.

It counts visible pairs at the rate of a kernel, KV at the rate of a link, a fixed time for each kernel call,
and hidden pairs at row ends. Kernels compute whole tiles, so each row of each band has some hidden pairs for
every rank whose keys it sees: this is the cost of the balance of stripes and small chunks. Merging is free,
since `band` merges in its epilogue.

Shapes: P ranks, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.schedule.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Attention forward, bf16, on an H200. With CALL_S and END_PAIRS an estimate is 7 % above the times that
# `benchmarks.cp.shardings` makes, give or take 2 %, over seven masks on 2 and 4 ranks.
FLOPS_PER_S = 650e12
END_PAIRS = 96  # hidden pairs at the end of each row of a band
# of a kernel call in addition to its pairs: host time, and idle multiprocessors at the start and in the tail
# wave
CALL_S = 100e-6
INTRA_NODE_BYTES_PER_S = 200e9  # one way, NCCL between two GPUs of an H200 host: 222 to 226 from 32 MB on
MESSAGE_S = 20e-6  # of a batch of messages in addition to its bytes
# slowdown of kernels by overlapped messages, as a share of the messages' time: 7 % of 4.5 ms for 128 MB on an
# H200
OVERLAP_SLOWDOWN = 0.3


@dataclass(frozen=True)
class UnitCosts:
    """The unit costs of plan estimates."""

    pair_s: float
    """seconds for a visible pair of one head group of the mask, for all its heads"""
    kv_s: float
    """seconds to move the key and value of one token, for all KV heads"""
    call_s: float = 0.0
    """seconds of a kernel call in addition to its pairs"""
    end_pairs: int = END_PAIRS
    """cost of a row end, in hidden pairs"""

    @classmethod
    def of(
        cls,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        num_groups: int = 1,
        elem_bytes: int = 2,
        flops_per_s: float = FLOPS_PER_S,
        bytes_per_s: float = INTRA_NODE_BYTES_PER_S,
    ) -> UnitCosts:
        """The unit costs of a forward call. Backward has 2.5 times the work per pair and about 2 to 3 times
        the bytes, so the choice would be the same."""
        return cls(
            4 * num_q_heads / num_groups * head_dim / flops_per_s,
            2 * num_kv_heads * head_dim * elem_bytes / bytes_per_s,
            CALL_S,
        )


@dataclass(frozen=True)
class PlanCost:
    """The estimated cost of a plan, in seconds."""

    compute_s: float
    """time of the rank with the most computation, with all KV available"""
    transfer_s: float
    """time of the rank with the most transfers, without overlap"""
    overlapped_s: float
    """time with transfers overlapped with kernels, without their slowdown of kernels"""

    @property
    def total_s(self) -> float:
        """The time that decides among plans: `overlapped_s` plus the slowdown of kernels by overlapped
        transfers."""
        return self.overlapped_s + OVERLAP_SLOWDOWN * max(
            self.transfer_s - (self.overlapped_s - self.compute_s), 0
        )


def cost_of(plan: Plan, costs: UnitCosts) -> PlanCost:
    """Estimates a plan. The KV of step n + 1 is transferred during step n."""
    return costs_of([plan], costs)[0]


def costs_of(plans: Sequence[Plan], costs: UnitCosts) -> list[PlanCost]:
    """Estimates plans of one schedule on as many ranks, all in one pass over the steps."""
    areas, band_rows, received, sent = (
        np.stack([getattr(plan, name) for plan in plans])
        # (plans, P, T)
        for name in ("step_areas", "step_band_rows", "received_kv", "sent_kv")
    )
    compute = (areas + costs.end_pairs * band_rows) * costs.pair_s + (areas > 0) * costs.call_s
    transfer = np.maximum(received, sent) * costs.kv_s
    total = (
        _ring_s(plans[0], compute, transfer, received > 0)
        if plans[0].forwards_kv
        else _gather_s(compute, transfer)
    )
    slowest = (compute.sum(axis=2).max(axis=1), transfer.sum(axis=2).max(axis=1), total)
    return [PlanCost(*values) for values in zip(*(seconds.tolist() for seconds in slowest), strict=True)]


def _gather_s(compute: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    """Seconds without waits between ranks: a rank proceeds when a step has finished and the KV of the next
    has arrived."""
    return np.maximum(compute, np.pad(transfer[..., 1:], ((0, 0), (0, 0), (0, 1)))).sum(axis=2).max(axis=1)


def _ring_s(plan: Plan, compute: np.ndarray, transfer: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Seconds with forwarded KV.

    A transfer starts when its KV is at the sender, its stream is free, and the receiver has released the
    buffer. So a rank waits for slower ones only as far as two buffers require.
    """
    # (T, plans, P)
    work, messages, moving = (
        np.ascontiguousarray(np.moveaxis(each, 2, 0)) for each in (compute, transfer, moves)
    )
    nothing: np.ndarray = np.zeros_like(work[0])
    done = [nothing, work[0]]
    there = [nothing]
    streams = dict[str, np.ndarray]()
    for number in range(1, plan.num_steps):
        senders = plan.senders(number)
        free = streams.get(plan.stream(number), nothing)
        ready = np.maximum(free, done[number - 1]) if number > 2 else free
        begins = np.maximum(ready, np.maximum(ready, there[plan.forwarded_from(number)])[:, senders])
        there.append(np.where(moving[number], begins + messages[number], 0))
        free = streams[plan.stream(number)] = np.maximum(free, there[-1])
        free[:, senders] = np.maximum(free[:, senders], there[-1])
        done.append(np.maximum(done[-1], there[-1]) + work[number])
    return done[-1].max(axis=1)


def head_pipeline(
    work_s: ArrayLike,
    arriving_s: ArrayLike,
    leaving_s: ArrayLike,
    overlap_slowdown: float | np.ndarray = OVERLAP_SLOWDOWN,
) -> np.ndarray:
    """Seconds of a rank with chunks of heads: each chunk arrives, is computed, and its results are sent back.

    All messages share one link, on which all chunks arrive before the first results are sent:

        link       in 0 │ in 1 │ in 2 │          out 0 │         out 1 │         out 2
        kernels         │ chunk 0            │ chunk 1        │ chunk 2        │

    Args:
        work_s, arriving_s, leaving_s: of each chunk, (chunks, …), of as many ranks as there are elements in
            the other axes.
    """
    work, arriving, leaving = (np.asarray(seconds) for seconds in (work_s, arriving_s, leaving_s))
    now = np.zeros(work.shape[1:])
    arrived = np.cumsum(arriving, axis=0)
    link = arrived[-1]
    for there, seconds, message_s in zip(arrived, work, leaving, strict=True):
        now = np.maximum(now, there) + seconds
        link = np.maximum(link, now) + message_s
    hidden = sum(arriving) + sum(leaving) - (link - sum(work))
    return link + overlap_slowdown * hidden
