"""The buffer schedule of one rank: its transfers before each step, their buffers, and when they are posted. It is made once for a plan.

Transfers are posted ahead: right after the kernel of an earlier step, so that they pass while the next kernel runs. A buffer is written
again as soon as nobody needs its content: a ring has two buffers, however many ranks it has. The ring of 4 on a rank (A and B are buffers;
"post 2" posts the transfers for step 2):

    kernel        post 1, post 2 │ step 0 │        │ step 1 │ post 3 │ step 2 │        │ step 3
    computes with                │ own    │        │ A      │        │ B      │        │ A
    receives            A, B     │        │        │        │   A    │        │        │
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """the buffer that is received into"""
    send_buffer: int
    """the buffer that is sent from, or OWN"""
    send_start: int
    """the first key in `send_buffer`, as a local index of its owner"""
    post_after: int
    """the step after whose kernel the transfers are posted, or START"""
    stream: str
    """the name of the comm stream"""
    num_own_kv: int
    """own KV tokens in front of what is received, if anything is received"""

    @property
    def num_keys(self) -> int:
        """KV tokens in `buffer` for this step."""
        return self.num_own_kv + sum(map(len, self.receives)) if self.receives else 0


class BufferSchedule:
    """All comm steps of one rank of a plan. Buffers and times are the same on all ranks; the sizes of buffers are not."""

    def __init__(self, plan: Plan, rank: int, early: bool) -> None:
        """
        Args:
            early: post transfers as soon as their buffer is free, even while what they forward is still arriving. That is right where
                a comm stream keeps its order without the host. Else transfers are posted one step ahead.
        """
        self._plan = plan
        self._readers: list[list[int]] = [[] for _ in range(plan.num_steps)]
        """of each step, the later steps for which its KV is forwarded"""
        for number in range(1, plan.num_steps):
            self._readers[plan.forwarded_from(number)].append(number)
        self._last_step: list[int] = []
        """of each buffer, the last step that uses it so far"""
        self.comm_steps: list[CommStep] = []
        for number in range(1, plan.num_steps):
            buffer, free_after = self._take(number)
            origin = plan.forwarded_from(number)
            source = self.comm_steps[origin - 1] if origin else None
            ahead = early and (source is None or source.stream == plan.stream(number))
            post_after = max(free_after, START if ahead else plan.post_after(number), source.post_after if source else START)
            sends = tuple(plan.sends(rank, number))
            send_start = plan.held_kv(rank, origin)[0][1] if sends and source else 0
            self.comm_steps.append(CommStep(number, tuple(plan.receives(rank, number)), sends, buffer, source.buffer if source else OWN,
                                            send_start, post_after, plan.stream(number), plan.num_own_kv(rank, number)))
        self._posted = {after: [step for step in self.comm_steps if step.post_after == after] for after in range(START, plan.num_steps)}
        self.buffer_keys = [max(step.num_keys for step in self.comm_steps if step.buffer == buffer)
                            for buffer in range(len(self._last_step))]
        """KV tokens that each buffer must have room for"""

    def posted_after(self, number: int) -> list[CommStep]:
        """The comm steps that are posted after the kernel of a step, in the order in which all ranks post them."""
        return self._posted[number]

    def _take(self, number: int) -> tuple[int, int]:
        """(buffer for the KV of a step, step after whose kernel it is free). It is a used buffer if one is free in time, else a new one."""
        for buffer, last_step in enumerate(self._last_step):
            free_after = self._free_after(last_step, number)
            if free_after is not None and free_after <= self._plan.post_after(number):
                self._last_step[buffer] = number
                return buffer, free_after
        self._last_step.append(number)
        return len(self._last_step) - 1, START

    def _free_after(self, held: int, number: int) -> int | None:
        """The step after whose kernel the KV of step `held` is needed no more; None if it is forwarded for step `number` or later."""
        readers = self._readers[held]
        if any(later >= number for later in readers):
            return None
        return max([held, *(self.comm_steps[later - 1].post_after for later in readers)])
