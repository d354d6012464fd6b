"""How long a call takes on all ranks of a plan, from how long each step's kernel takes and what moves: a model, not a measurement.

It goes through the steps as `PlanAttention` does. Keys set out when their buffer is free at the receiver and they are there at the
sender, one batch of a lane after another; a kernel starts when the one before it is done and its keys have arrived; backward, a step's
gradients go home after its kernel, and the second kernel after it waits for them. So ranks hold each other up as far as buffers
make them, and no further. Not in it: that lanes share a link, and what hosts do.

Shapes: P ranks of the plan, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longca.cp.partition.mesh import RANKS_PER_NODE
from longca.cp.schedule.buffer_schedule import BufferSchedule
from longca.cp.schedule.cost import BESIDE, BYTES_PER_S
from longca.cp.schedule.plan import Plan, Transfer

FAR_BYTES_PER_S = 40e9  # assumed, never measured here: one adapter of 400 Gb/s for each GPU, at 80 %
MESSAGE_S = 20e-6  # of a batch beside its bytes
GRADIENTS = "gradients"


@dataclass(frozen=True)
class Links:
    """What messages take. Each rank has a link each way."""

    near_bytes_per_s: float = BYTES_PER_S
    """between GPUs of one host"""
    far_bytes_per_s: float = FAR_BYTES_PER_S
    """between hosts"""
    message_s: float = MESSAGE_S
    beside: float = BESIDE
    ranks_per_host: int = RANKS_PER_NODE

    def byte_s(self, ranks: Sequence[int]) -> np.ndarray:
        """Seconds for a byte between these ranks of the job, each on the host of its number, (P, P)."""
        host = np.asarray(ranks) // self.ranks_per_host
        return np.where(host[:, None] == host, 1 / self.near_bytes_per_s, 1 / self.far_bytes_per_s)


@dataclass(frozen=True)
class Traffic:
    """What a plan moves, as all ranks post it."""

    keys: np.ndarray
    """that come in for each step, (T, P, P) int64 by (step, receiver, sender)"""
    gradients: np.ndarray
    """of keys, that come home after each step, likewise"""
    computes: np.ndarray
    """whether a rank has a kernel in a step, (P, T) bool"""
    before: tuple[int, ...]
    """of each step, the one since which the sender has its keys"""
    after: tuple[int, ...]
    """of each step, the one after whose kernel its keys are posted; −1 for at the start"""
    lanes: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> Traffic:
        """As on GPUs, where a lane keeps its order without the host."""
        keys, gradients = (np.zeros((plan.num_steps, plan.world, plan.world), dtype=np.int64) for _ in range(2))
        for rank in range(plan.world):
            for number in range(1, plan.num_steps):
                _count(keys[number, rank], plan.receives(rank, number))
                _count(gradients[number, :, rank], plan.gradient_sends(rank, number))
        hops, later = BufferSchedule(plan, 0, early=True).hops, range(1, plan.num_steps)  # times are the same on all ranks
        return cls(keys, gradients, plan.step_areas > 0, (0, *map(plan.step_before, later)), (-1, *(hop.after for hop in hops)),
                   ("", *map(plan.lane, later)))


def _count(row: np.ndarray, moves: list[Transfer]) -> None:
    for move in moves:
        row[move.peer] += len(move)


@dataclass(frozen=True)
class Timeline:
    """Of each rank, (P,) seconds each."""

    end_s: np.ndarray
    """when it is done, as if messages took nothing from kernels beside them"""
    compute_s: np.ndarray
    moving_s: np.ndarray
    """for which its link is busy"""

    @property
    def wait_s(self) -> np.ndarray:
        """For which it does not compute: keys or gradients are on their way, or those who must send or take them are not ready."""
        return self.end_s - self.compute_s

    def total_s(self, beside: float) -> np.ndarray:
        """`end_s`, and what kernels lose to the messages that they hide."""
        return self.end_s + beside * np.maximum(self.moving_s - self.wait_s, 0)


def timeline(traffic: Traffic, step_s: np.ndarray, key_s: np.ndarray, message_s: float = 0.0, *, backward: bool = False) -> Timeline:
    """
    Args:
        step_s: what each rank computes in each step, (P, T) seconds; what it does in a step without a kernel waits for no keys.
        key_s: for a key with its value, or their gradients, from rank to rank, (P, P) seconds.
        message_s: of a batch beside that.
        backward: gradients of keys go home.
    """
    world, num_steps = step_s.shape
    batches = _Batches(key_s, message_s, world)
    done, arrived, home = np.zeros((num_steps + 1, world)), np.zeros((num_steps, world)), np.zeros((num_steps + 1, world))
    for number in range(num_steps):
        if number:
            ready = done[traffic.after[number] + 1]
            arrived[number], _ = batches.post(traffic.lanes[number], traffic.keys[number], ready, arrived[traffic.before[number]])
        start = np.maximum(done[number], home[max(number - 2, 0)])
        start = np.where(traffic.computes[:, number], np.maximum(start, arrived[number]), start)
        done[number + 1] = start + step_s[:, number]
        if backward and number:
            _, home[number] = batches.post(GRADIENTS, traffic.gradients[number], done[number + 1])
    return Timeline(np.maximum(done[-1], batches.end()), step_s.sum(axis=1), batches.moving_s)


class _Batches:
    """Messages of all ranks, lane by lane."""

    def __init__(self, key_s: np.ndarray, message_s: float, world: int) -> None:
        self._key_s, self._message_s = key_s, message_s
        self._lanes: dict[str, np.ndarray] = {}
        self.moving_s = np.zeros(world)

    def post(self, lane: str, rows: np.ndarray, ready: np.ndarray, there: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """(when what a rank receives is there, when its batch is over), (P,) each; 0 where there is none.

        A batch has the link for itself, and all its messages end together, when the busier side of each has moved its own.

        Args:
            rows: (receiver, sender).
            ready: when each rank posts its batch.
            there: when it has what it sends.
        """
        free = self._lanes.setdefault(lane, np.zeros(len(ready)))
        some, seconds = rows > 0, rows * self._key_s
        incoming, outgoing = seconds.sum(axis=1), seconds.sum(axis=0)
        begins = np.maximum(ready, free)
        start = np.maximum(begins, _latest(some, np.maximum(begins, there)))
        arrived = np.where(some.any(axis=1), start + np.maximum(incoming, _latest(some, outgoing)) + self._message_s, 0.0)
        over = np.maximum(arrived, _latest(some.T, arrived))
        self._lanes[lane] = np.maximum(free, over)
        self.moving_s += np.maximum(incoming, outgoing) + self._message_s * (some.any(axis=0) | some.any(axis=1))
        return arrived, over

    def end(self) -> np.ndarray:
        """When each rank's last batch is over."""
        return np.max([np.zeros_like(self.moving_s), *self._lanes.values()], axis=0)


def _latest(some: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Of the peers of each row of (P, P), (P,); 0 without peers."""
    return np.where(some, times, 0.0).max(axis=1, initial=0.0)


def head_pipeline(work_s: Sequence[float], arriving_s: Sequence[float], leaving_s: Sequence[float], beside: float = BESIDE) -> float:
    """Seconds of a rank with chunks of heads: each is computed with when it has come, and then goes home.

    Messages have one link, on which all arrive before the first goes home.

    Args:
        work_s, arriving_s, leaving_s: of each chunk.
    """
    link = now = 0.0
    arrived = []
    for message_s in arriving_s:
        link += message_s
        arrived.append(link)
    for there, seconds, message_s in zip(arrived, work_s, leaving_s, strict=True):
        now = max(now, there) + seconds
        link = max(link, now) + message_s
    hidden = sum(arriving_s) + sum(leaving_s) - (link - sum(work_s))
    return link + beside * hidden
