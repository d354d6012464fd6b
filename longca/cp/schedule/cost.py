"""What a plan would cost, roughly: enough to choose between permutations.

Pairs at the rate of a kernel, keys at that of a link, and what there is beside them: a cost of each kernel call, and hidden pairs at the
ends of rows. Tiles are computed whole, so each row of each band has some, for every rank that it sees keys of: that is what stripes and
small chunks pay for their balance. Merging has no cost of its own: `band` merges as it stores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.cp.schedule.plan import Plan

# Attention forward, bf16 on an H200. With the two costs beside it an estimate is 7 % above the times that `benchmarks.cp.placements` makes,
# give or take 2 %, over seven masks on 2 and 4 ranks.
FLOPS_PER_S = 650e12
END_PAIRS = 96
# Of a call beside its work: what it costs the host, and a kernel's first and last programs, beside which multiprocessors are idle.
CALL_S = 100e-6
BYTES_PER_S = 200e9  # one way, NCCL between two GPUs of an H200 host: 222 to 226 from 32 MB on
BESIDE = 0.3  # what kernels lose to messages beside them, of the time of these: 7 % of 4.5 ms to 128 MB on an H200


@dataclass(frozen=True)
class Rates:
    pair_s: float  # seconds for a visible pair of one head group, all its heads
    key_s: float  # seconds to move a key with its value, all KV heads
    call_s: float = 0.0  # seconds of a kernel call beside its pairs
    end_pairs: int = END_PAIRS  # hidden pairs that the end of a row costs

    @classmethod
    def of(cls, num_q_heads: int, num_kv_heads: int, head_dim: int, *, num_groups: int = 1, elem_bytes: int = 2,
           flops_per_s: float = FLOPS_PER_S, bytes_per_s: float = BYTES_PER_S) -> Rates:
        """Of a forward call; backward is 2.5 times the pairs and about 2 to 3 times the bytes, so it chooses alike."""
        return cls(4 * num_q_heads / num_groups * head_dim / flops_per_s, 2 * num_kv_heads * head_dim * elem_bytes / bytes_per_s, CALL_S)


@dataclass(frozen=True)
class PlanCost:
    compute_s: float  # of the rank with the most to compute, as if keys were there
    move_s: float  # of the rank with the most to move, as if nothing hid it
    unslowed_s: float  # with keys on their way while others are computed with, as if these took nothing from kernels

    @property
    def total_s(self) -> float:
        """By which plans are chosen."""
        return self.unslowed_s + BESIDE * max(self.move_s - (self.unslowed_s - self.compute_s), 0)


def cost_of(plan: Plan, rates: Rates) -> PlanCost:
    """Keys of step n + 1 move during step n."""
    compute = (plan.step_areas + rates.end_pairs * plan.step_meetings) * rates.pair_s + (plan.step_areas > 0) * rates.call_s
    move = np.maximum(plan.step_rows, plan.sent_rows) * rates.key_s
    total = _in_turn(plan, compute, move) if plan.coupled else _by_themselves(compute, move)
    return PlanCost(float(compute.sum(axis=1).max()), float(move.sum(axis=1).max()), float(total))


def _by_themselves(compute: np.ndarray, move: np.ndarray) -> float:
    """Where each rank goes on when it is done with a step and has the keys of the next."""
    return float(np.maximum(compute, np.pad(move[:, 1:], ((0, 0), (0, 1)))).sum(axis=1).max())


def _in_turn(plan: Plan, compute: np.ndarray, move: np.ndarray) -> float:
    """Where keys go from rank to rank: they leave when they are there and their lane is free, and arrive in a buffer with whose keys the
    receiver is done. So a rank waits for slower ones as far as two buffers make it, and no further.
    """
    done, there, lanes = [np.zeros(plan.world), compute[:, 0]], [np.zeros(plan.world)], dict[str, np.ndarray]()
    for number in range(1, plan.num_steps):
        senders, free = plan.senders(number), lanes.get(plan.lane(number), there[0])
        ready = np.maximum(free, done[number - 1] if number > 2 else 0)
        begins = np.maximum(ready, np.maximum(ready, there[plan.step_before(number)])[senders])
        there.append(np.where(plan.step_rows[:, number] > 0, begins + move[:, number], 0))
        free = lanes[plan.lane(number)] = np.maximum(free, there[-1])
        free[senders] = np.maximum(free[senders], there[-1])
        done.append(np.maximum(done[-1], there[-1]) + compute[:, number])
    return float(done[-1].max())
