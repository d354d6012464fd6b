"""Plans: each rank's kernel calls, step by step, and the required transfers of keys and values (KV).

A plan is the same on every rank and is computed from the mask alone, without communication. In step 0 a rank
computes with its own KV. Here is a ring of 4 ranks (`longca.cp.schedule.ring_and_gather`). The letters are KV: a is
owned by rank 0, b by rank 1, and so on.

               rank 0      rank 1      rank 2      rank 3
    step 0       a           b           c           d        own KV: nothing moves
                   ╲           ╲           ╲           ╲      each rank sends on what it held in `forwarded_from(1)` = step 0
    step 1       d           a           b           c
                   ╲           ╲           ╲           ╲
    step 2       c           d           a           b
                   ╲           ╲           ╲           ╲
    step 3       b           c           d           a

A gather has no forwarding: each rank gets its visible KV directly from the
owners, in one or more steps.

Transfers are posted ahead (`BufferSchedule`), right after the kernel of an earlier step, so that they overlap
with the next kernel. A buffer is reused as soon as its content is no longer needed: a ring has two buffers for any number
of ranks. The ring of 4 on a rank (A and B are buffers; "post 2" posts the transfers for step 2):

    kernel        post 1, post 2 │ step 0 │        │ step 1 │ post 3 │ step 2 │        │ step 3
    computes with                │ own    │        │ A      │        │ B      │        │ A
    receives            A, B     │        │        │        │   A    │        │        │

Shapes: P ranks, T steps. KV are counted in tokens, and ranges of KV are local indices of their owner.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition, Step

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import KvRange, PartitionStack
    from longca.cp.partition.sharding import Sharding
    from longca.masks import Mask

OWN = -1  # the "buffer" of a rank's own KV
START = -1  # the "step" after which transfers are posted before the first kernel


@dataclass(frozen=True)
class Transfer:
    """One message of KV between this rank and a peer. Backward, dK and dV of the same tokens are sent in the
    opposite direction."""

    peer: int
    owner: int
    """the rank whose KV it is"""
    start: int
    """start..end: local indices of the owner"""
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class StepMessages:
    """All messages of one step between ranks, as arrays (n,) int64; at most one for each pair of ranks."""

    receiver: np.ndarray
    sender: np.ndarray
    tokens: np.ndarray
    """number of tokens, more than 0"""

    @classmethod
    def of(cls, receiver: np.ndarray, sender: np.ndarray, tokens: np.ndarray) -> StepMessages:
        """The non-empty messages."""
        some = tokens > 0
        return cls(receiver[some], sender[some], tokens[some])

    @cached_property
    def one_each(self) -> bool:
        """True if each rank receives from at most one rank, and sends to at most one."""
        return all(np.bincount(side).max(initial=0) <= 1 for side in (self.receiver, self.sender))


class Schedule(Protocol):
    """The specification of a schedule: `Ring` or `Gather` with options. It is hashable, and its text appears
    in notes."""

    def plan(self, mask: Mask, sharding: Sharding) -> Plan:
        """Plans a mask on a sharding.

        Raises:
            ValueError: the schedule's options do not fit the number of ranks.
        """
        ...

    def plans_of(self, partitions: PartitionStack) -> PlanStack:
        """`plan` for existing partitions, so that several schedules can share them."""
        ...

    def __hash__(self) -> int: ...


class Plan:
    """A partitioned mask on a schedule. The module's docstring has a drawing; `rank` and `number` of
    a step are the arguments of most methods.

    Steps without visible pairs have no kernel call, and unneeded KV is not transferred.
    """

    forwards_kv: bool
    """True if ranks forward received KV, so that they wait for each other (a ring)"""
    is_all_to_all: ClassVar[bool] = False
    """True if all KV comes directly from its owner, in the order of ranks, so that the messages of a step
    form one all-to-all (a gather)"""
    num_steps: int
    """the largest number of steps of any rank"""
    step_areas: np.ndarray
    """visible pairs of each step, (P, T) int64"""
    step_band_rows: np.ndarray
    """`MaskPartition.band_rows` of each step, (P, T) int64"""
    received_kv: np.ndarray
    """KV tokens that a rank receives for each step, (P, T) int64; 0 for step 0"""
    sent_kv: np.ndarray
    """KV tokens that a rank sends for each step, (P, T) int64"""

    def __init__(self, partition: MaskPartition, schedule: Schedule) -> None:
        self.partition = partition
        self.schedule = schedule
        self.world = partition.sharding.world

    @property
    def sharding(self) -> Sharding:
        return self.partition.sharding

    @cached_property
    def step_rows(self) -> np.ndarray:
        """Queries of each step that see some of its keys, at most, (P, T), in the mean over head groups."""
        return np.minimum(
            self.sharding.num_tokens[:, None], self.step_band_rows / self.partition.mask.num_groups
        )

    @cached_property
    def step_keys(self) -> np.ndarray:
        """Keys of each step, (P, T)."""
        with_own = [self.num_own_kv(0, number) > 0 for number in range(self.num_steps)]
        return self.received_kv + np.outer(self.sharding.num_tokens, with_own)

    def of_mask(self, mask: Mask) -> Plan:
        """The plan of another mask, on the same schedule and sharding."""
        return self.schedule.plan(mask, self.sharding)

    def steps(self, rank: int) -> list[Step]:
        """The kernel calls of a rank, in order. Masks are built on demand."""
        return [self.step(rank, number) for number in self.step_numbers(rank)]

    def step_numbers(self, rank: int) -> list[int]:
        """The steps in which a rank has a kernel call."""
        return np.flatnonzero(self.step_areas[rank]).tolist()

    def step(self, rank: int, number: int) -> Step:
        """The kernel call of a rank in a step, which must exist."""
        return Step(
            self.partition, rank, number, self.needed_kv(rank, number), int(self.step_areas[rank, number])
        )

    def held_kv(self, rank: int, number: int) -> tuple[KvRange, ...]:
        """All KV in the rank's buffer in a step, including KV that the rank does not use."""
        raise NotImplementedError

    def needed_kv(self, rank: int, number: int) -> tuple[KvRange, ...]:
        """KV of the buffer that the rank itself uses: for each owner, from the first to the last visible
        key."""
        return self.held_kv(rank, number)

    def num_own_kv(self, rank: int, number: int) -> int:
        """The number of own KV tokens that the rank uses in a step. They precede received ones."""
        return int(self.sharding.num_tokens[rank]) if number == 0 else 0

    def forwarded_from(self, number: int) -> int:
        """The step since which the sender has the KV of step `number` > 0; 0 for the sender's own KV."""
        return 0

    def senders(self, number: int) -> np.ndarray:
        """The rank from which each rank gets the KV of step `number` > 0, (P,). Only for plans that
        `forwards_kv`."""
        raise NotImplementedError

    def post_after(self, number: int) -> int:
        """The step after whose kernel the transfers of step `number` should be posted; −1 for before the
        first kernel."""
        return number - 2

    def stream(self, number: int) -> str:
        """The name of the comm stream of a step's transfers. Different streams are independent."""
        return "keys"

    def receives(self, rank: int, number: int) -> list[Transfer]:
        """Transfers to the rank for a step, in the order of the buffer."""
        raise NotImplementedError

    def sends(self, rank: int, number: int) -> list[Transfer]:
        """Transfers from the rank for the same step of other ranks, by peer."""
        raise NotImplementedError

    def dkv_sends(self, rank: int, number: int) -> list[Transfer]:
        """Transfers of dK and dV after a step, directly to the owner of the KV, in the order of `needed_kv`
        after the rank's own."""
        if number == 0 or not self.step_areas[rank, number]:
            return []
        return [Transfer(owner, owner, start, end) for owner, start, end in self.needed_kv(rank, number)]

    def dkv_receives(self, rank: int, number: int) -> list[Transfer]:
        """Transfers of dK and dV of the rank's own KV, after the same step of other ranks, by peer."""
        return self.sends(rank, number)

    def messages(self, number: int) -> StepMessages:
        """The transfers of all ranks for a step, summed by pair of ranks."""
        raise NotImplementedError

    def dkv_messages(self, number: int) -> StepMessages:
        """The transfers of dK and dV of all ranks after a step, summed by pair of ranks."""
        raise NotImplementedError

    def _own_kv(self, rank: int) -> tuple[KvRange, ...]:
        return ((rank, 0, int(self.sharding.num_tokens[rank])),)


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


class PlanStack:
    """The plans of one schedule on several partitions. Their counts are known, and each plan is made when
    asked for.

    The counts of all, (J, P, T) each: `step_areas`, `step_band_rows`, `received_kv`, `sent_kv` as of `Plan`.
    """

    def __init__(
        self, partitions: Sequence[MaskPartition], make: Callable[..., Plan], counts: Sequence[np.ndarray]
    ) -> None:
        """
        Args:
            make: makes the plan of a partition with its counts.
            counts: those four, then others of the schedule, for J partitions.
        """
        self._partitions = partitions
        self._make = make
        # sums over steps have the same bits for a plan alone and among others
        self._counts = [np.ascontiguousarray(table) for table in counts]
        self.step_areas, self.step_band_rows, self.received_kv, self.sent_kv, *_ = self._counts

    @classmethod
    def of(cls, plan: Plan) -> PlanStack:
        """A single plan."""
        counts = (plan.step_areas, plan.step_band_rows, plan.received_kv, plan.sent_kv)
        return cls([plan.partition], lambda *_: plan, [table[None] for table in counts])

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Plan]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Plan:
        return self._make(self._partitions[number], *(table[number] for table in self._counts))
