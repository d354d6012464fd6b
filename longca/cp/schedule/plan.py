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

Methods of a plan; `rank` and `step` are their arguments:

    held_kv          ranges of KV in the rank's receive buffer in a step, including what it only forwards
    needed_kv        the part of `held_kv` that the rank itself computes with
    num_own_kv       number of own KV tokens at the front of `needed_kv`: all in step 0, none in most other steps
    receives         transfers that fill the buffer for a step, in the buffer's order
    sends            transfers to other ranks for the same step of theirs
    dkv_sends        transfers of dK and dV after a step, straight to the KV's owner
    dkv_receives     transfers of dK and dV for own KV, after the same step of others
    forwarded_from   the step in which the sender had the KV of a later step in its own buffer; 0: it is the sender's own
    post_after       the step after whose kernel the transfers of a step should be posted; −1: before the first kernel
    stream           the name of the comm stream of a step's transfers; streams do not wait for each other
    messages         all transfers of a step between ranks, and `dkv_messages` those of dK and dV, as arrays

Shapes: P ranks, T steps. KV are counted in tokens, and ranges of KV are local indices of their owner.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from longca.cp.partition.mask_partition import MaskPartition
from longca.masks import Mask, band

if TYPE_CHECKING:
    from longca.cp.partition.joint import PartitionStack
    from longca.cp.partition.mask_partition import KvRange
    from longca.cp.partition.sharding import Sharding


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


@dataclass(frozen=True)
class Step:
    """One kernel call: all queries of a rank and some KV."""

    partition: MaskPartition
    rank: int
    number: int
    keys: tuple[KvRange, ...]
    """(owner, start, end) of each range, in the order of the call"""
    area: int
    """visible pairs, over all head groups"""

    @cached_property
    def mask(self) -> Mask:
        """The call's mask in local indices: queries in the order of the rank, keys in the order of `keys`."""
        if self.is_full:
            whole = self.partition.mask
            every = band.make(0, self.num_rows, 0, self.num_keys)
            return Mask(self.num_rows, self.num_keys, (every,) * whole.num_groups, name=whole.name)
        return self.partition.local_mask(self.rank, self.keys)

    @property
    def is_full(self) -> bool:
        """True for a full rectangle in bands, as in most steps of causal and full masks."""
        whole = self.partition.mask
        return whole.grid is None and self.area == whole.num_groups * self.num_rows * self.num_keys

    @property
    def num_rows(self) -> int:
        return int(self.partition.sharding.num_tokens[self.rank])

    @cached_property
    def num_keys(self) -> int:
        return sum(end - start for _, start, end in self.keys)


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
    """A partitioned mask on a schedule. The module's docstring has a drawing and lists the methods.

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
