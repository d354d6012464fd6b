"""Receive buffers of a rank of a plan, and the transfers that fill them: which buffer each step uses, and
after which kernel its transfers are posted. `longca.cp.schedule.plan` draws them for a ring."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longca.cp.schedule.plan import Plan, Transfer

OWN = -1  # the "buffer" of a rank's own KV
START = -1  # the "step" after which transfers are posted before the first kernel


@dataclass(frozen=True)
class CommStep:
    """The transfers before one step of a plan."""

    number: int
    """of the step"""
    receives: tuple[Transfer, ...]
    sends: tuple[Transfer, ...]
    buffer: int
    """the receive buffer"""
    send_buffer: int
    """the source buffer, or OWN"""
    send_start: int
    """the first key in `send_buffer`, as a local index of its owner"""
    post_after: int
    """the step after whose kernel the transfers are posted, or START"""
    stream: str
    """the name of the comm stream"""
    num_own_kv: int
    """own KV tokens in front of received ones, if any are received"""

    @property
    def num_keys(self) -> int:
        """KV tokens in `buffer` for this step."""
        return self.num_own_kv + sum(map(len, self.receives)) if self.receives else 0


class BufferSchedule:
    """All comm steps of one rank of a plan. Buffers and times are the same on all ranks, but the sizes of
    buffers differ.

    Steps with their transfers are created on demand, since estimates need only buffers and times.
    """

    def __init__(self, plan: Plan, rank: int, early: bool) -> None:
        """
        Args:
            early: post transfers as soon as their buffer is free, even while the data that they forward is
                still arriving. This requires comm streams that keep their order without the host. Otherwise
                transfers are posted one step ahead.
        """
        self._plan = plan
        self._rank = rank
        self._readers: list[list[int]] = [[] for _ in range(plan.num_steps)]
        """for each step, the later steps for which its KV is forwarded"""
        for number in range(1, plan.num_steps):
            self._readers[plan.forwarded_from(number)].append(number)
        self._last_step: list[int] = []
        """for each buffer, the last step that uses it so far"""
        self._buffer = [OWN]
        """the buffer of each step"""
        self.post_after = [START]
        """for each step, the step after whose kernel its transfers are posted, or START"""
        for number in range(1, plan.num_steps):
            buffer, free_after = self._take(number)
            origin = plan.forwarded_from(number)
            ahead = early and (not origin or plan.stream(origin) == plan.stream(number))
            self._buffer.append(buffer)
            self.post_after.append(
                max(free_after, START if ahead else plan.post_after(number), self.post_after[origin])
            )

    @cached_property
    def comm_steps(self) -> list[CommStep]:
        """The comm steps, in order, beginning with that of step 1."""
        return [self._comm_step(number) for number in range(1, self._plan.num_steps)]

    def _comm_step(self, number: int) -> CommStep:
        plan = self._plan
        rank = self._rank
        origin = plan.forwarded_from(number)
        sends = tuple(plan.sends(rank, number))
        send_start = plan.held_kv(rank, origin)[0][1] if sends and origin else 0
        return CommStep(
            number,
            tuple(plan.receives(rank, number)),
            sends,
            self._buffer[number],
            self._buffer[origin],
            send_start,
            self.post_after[number],
            plan.stream(number),
            plan.num_own_kv(rank, number),
        )

    @cached_property
    def buffer_keys(self) -> list[int]:
        """Capacity of each buffer in KV tokens."""
        found = [0] * len(self._last_step)
        received = self._plan.received_kv[self._rank].tolist()
        for number in range(1, self._plan.num_steps):
            num_keys = self._plan.num_own_kv(self._rank, number) + received[number] if received[number] else 0
            found[self._buffer[number]] = max(found[self._buffer[number]], num_keys)
        return found

    @cached_property
    def _posted(self) -> dict[int, list[CommStep]]:
        return {
            after: [step for step in self.comm_steps if step.post_after == after]
            for after in range(START, self._plan.num_steps)
        }

    def posted_after(self, number: int) -> list[CommStep]:
        """The comm steps that are posted after the kernel of a step, in the order in which all ranks post
        them."""
        return self._posted[number]

    def _take(self, number: int) -> tuple[int, int]:
        """(buffer for the KV of a step, step after whose kernel it is free). An existing buffer is reused if
        it is free in time."""
        for buffer, last_step in enumerate(self._last_step):
            free_after = self._free_after(last_step, number)
            if free_after is not None and free_after <= self._plan.post_after(number):
                self._last_step[buffer] = number
                return buffer, free_after
        self._last_step.append(number)
        return len(self._last_step) - 1, START

    def _free_after(self, held: int, number: int) -> int | None:
        """The step after whose kernel the KV of step `held` is no longer needed; None if it is forwarded for
        step `number` or later."""
        readers = self._readers[held]
        if any(later >= number for later in readers):
            return None
        return max([held, *(self.post_after[later] for later in readers)])
