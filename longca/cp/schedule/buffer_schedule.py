"""What a rank receives and passes on before each step, into which buffers, and when: decided once for a plan.

Moves are posted ahead: right after the kernel of an earlier step and before what comes after it, so that they pass while the next kernel
runs. A buffer is written again as soon as nobody needs what is in it: a ring has two, however many ranks it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from longca.cp.schedule.plan import Plan, Transfer

OWN = -1  # the "buffer" of a rank's own keys
START = -1  # for a move that is posted before the first kernel


@dataclass(frozen=True)
class CommStep:
    """The moves before one step."""

    number: int
    receives: tuple[Transfer, ...]
    sends: tuple[Transfer, ...]
    buffer: int
    """that is received into"""
    source: int
    """the buffer that is sent from"""
    source_first: int
    """the first key in it, as an index into what the keys' owner holds"""
    after: int
    """posted after the kernel of this step, or at the START"""
    lane: str
    kept: int
    """own keys that lie in front of what is received, if anything is"""

    @property
    def num_keys(self) -> int:
        return self.kept + sum(map(len, self.receives)) if self.receives else 0


class BufferSchedule:
    """All hops of one rank of a plan. Buffers and times are the same on all ranks, the sizes of buffers are not."""

    def __init__(self, plan: Plan, rank: int, early: bool) -> None:
        """
        Args:
            early: post a move as soon as its buffer is free, also while what it passes on is still on its way: right where a lane keeps
                its order without the host. Else one step ahead.
        """
        self._plan = plan
        self._held: list[int] = []
        """the last step of each buffer"""
        self.hops = []
        for number in range(1, plan.num_steps):
            buffer, free = self._take(number)
            origin = plan.step_before(number)
            source = self.hops[origin - 1] if origin else None
            ahead = early and (source is None or source.lane == plan.lane(number))
            after = max(free, START if ahead else plan.due(number), source.after if source else START)
            sends = tuple(plan.sends(rank, number))
            first = plan.keys(rank, origin)[0][1] if sends and source else 0
            self.hops.append(CommStep(number, tuple(plan.receives(rank, number)), sends, buffer, source.buffer if source else OWN, first,
                                 after, plan.lane(number), plan.kept(rank, number)))
        self._posted = {after: [hop for hop in self.hops if hop.after == after] for after in range(START, plan.num_steps)}
        self.buffer_keys = [max(hop.num_keys for hop in self.hops if hop.buffer == buffer) for buffer in range(len(self._held))]
        """keys that each buffer has room for"""

    def posted_after(self, number: int) -> list[CommStep]:
        """In the order in which all ranks post them."""
        return self._posted[number]

    def _take(self, number: int) -> tuple[int, int]:
        """(buffer, step after whose kernel it is free) for what a step receives: one that is free when it is due, else a new one."""
        for buffer, held in enumerate(self._held):
            free = self._free_after(held, number)
            if free is not None and free <= self._plan.due(number):
                self._held[buffer] = number
                return buffer, free
        self._held.append(number)
        return len(self._held) - 1, START

    def _free_after(self, held: int, number: int) -> int | None:
        """The step after whose kernel the keys of step `held` are needed no more; None if they are passed on later."""
        readers = [later for later in range(held + 1, self._plan.num_steps) if self._plan.step_before(later) == held]
        if any(later >= number for later in readers):
            return None
        return max([held, *(self.hops[later - 1].after for later in readers)])
