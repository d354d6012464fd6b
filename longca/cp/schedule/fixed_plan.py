"""The plan of attention in a fixed order of fixed parts: what each rank of a ring computes, sends and adds.

Each part (`longca.cp.partition.fixed_parts`) is one kernel call with all keys that it sees, whatever the
number of ranks. So its output, LSE and dq are final, and only dk and dv are sums, over parts in their order:

    forward    all keys that a rank's parts see arrive │ part │ part │ …
    backward   the same │ part of round 0 │ part of round 1                 │ …
                                          │ dk, dv of round 0 to the owners │ added in the order of parts

Indices are local: rows of this rank, of what it has received, or of a call's keys. Shapes: P ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from longca.cp.partition.fixed_parts import FixedPart, PartSharding, deal_parts, parts_of, union_of_keys
from longca.cp.partition.mesh import Mesh, plan_heads
from longca.cp.schedule.planner import cost_of
from longca.cp.schedule.ring_and_gather import Gather
from longca.cp.schedule.work_partition import (
    HeadCost,
    WorkPartition,
    choose_chunks,
    received_head_bytes,
    unit_costs,
)

if TYPE_CHECKING:
    from longca.core import Answer, CallSpec
    from longca.cp.contract import HeadStrategy
    from longca.cp.partition.sharding import Sharding
    from longca.kernels import Kernel
    from longca.masks import Mask

    Rows = tuple[tuple[int, int], ...]
    """ranges (start, end)"""


def num_rows(rows: Rows) -> int:
    return sum(end - start for start, end in rows)


def partition_fixed(
    mesh: Mesh, mask: Mask, call: CallSpec, sharding: Sharding | None = None
) -> WorkPartition:
    """The work of all ranks in fixed parts. Its plan, a gather, has the same keys and pairs, for estimates.

    Args:
        sharding: that of another such partition, to be shared.

    Raises:
        ValueError: there are more ranks in a ring than parts.
    """
    if sharding is None:
        sharding = deal_parts(mask, mesh.ring)
    assert isinstance(sharding, PartSharding)
    plan = Gather().plan(mask, sharding)
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads, whole=True)
    head_s = cost_of(plan, unit_costs(call, Mesh(1), mask)).total_s / call.num_q_heads
    moved = received_head_bytes(call, mask.seqlen_q // mesh.ring, mesh.heads)
    cost = HeadCost(head_s, moved, -(-len(sharding.part_owner) // mesh.ring))
    weights = (1,) if mesh.heads == 1 else None
    chunks = choose_chunks(heads, mask.num_groups, cost, call.direction == "bwd", weights, (1,))
    return WorkPartition(mesh, plan, chunks)


def fixed_refusal(
    strategy: HeadStrategy, mask: Mask, call: CallSpec, world: int, kernel: Kernel, device_type: str
) -> Answer:
    """None if strategy and kernel can do this call in a fixed order, else the first reason why not. Pure."""
    if not kernel.deterministic:
        return "a fixed order needs a kernel whose bits never change from call to call, as band or naive"
    reason = kernel.in_parts(call, device_type) or strategy.unfit_ranks(call, world)
    if reason is not None:
        return reason
    mesh = strategy.mesh(world, call.num_kv_heads)
    try:
        sharding = deal_parts(mask, mesh.ring)
    except ValueError as error:
        return str(error)
    heads = plan_heads(call.num_q_heads, call.num_kv_heads, mesh.heads, whole=True)
    if any(heads.mask_groups(rank, mask.num_groups) is None for rank in range(mesh.heads)):
        return (
            f"the mask differs among {mask.num_groups} head groups, and {mesh.heads} ranks cannot divide "
            f"{call.num_kv_heads} KV heads so that each has whole groups or heads of one"
        )
    ratio = call.num_q_heads // call.num_kv_heads
    most = -(-call.num_kv_heads // mesh.heads) if kernel.keeps_bits_of_heads else 1
    reasons = (
        kernel.supports(
            replace(call, num_q_heads=count * ratio, num_kv_heads=count),
            part.mask.select_groups(group, group + 1).traits,
            device_type,
        )
        for part in parts_of(mask, sharding)
        for group in range(mask.num_groups)
        for count in {1, most}
    )
    return next(filter(None, reasons), None)


@dataclass(frozen=True)
class KeySource:
    """Some keys of a call, in its order."""

    is_own: bool
    """True: rows of this rank; False: rows of what it has received"""
    start: int
    end: int


@dataclass(frozen=True)
class RankPart:
    """A part on its rank."""

    part: FixedPart
    rows: Rows
    """of this rank, ascending"""
    keys: tuple[KeySource, ...]
    """of its call"""
    of_owner: dict[int, Rows]
    """by rank, the rows of the call's keys that it owns, ascending"""


@dataclass(frozen=True)
class Addend:
    """dk and dv of one part for keys of a rank."""

    rank: int
    """that computes them"""
    rows: Rows
    """of the owner, ascending: at most one for each of the part's ranges of keys"""

    def __len__(self) -> int:
        return num_rows(self.rows)


class FixedPlan:
    """The plan of all ranks of a ring, for one mask."""

    def __init__(self, mask: Mask, sharding: PartSharding) -> None:
        self.sharding = sharding
        self.world = sharding.world
        self.num_rounds = -(-len(sharding.part_owner) // self.world)
        self._parts = parts_of(mask, sharding)
        self._of_rank = [
            [part for part in self._parts if self._rank_of(part) == rank] for rank in range(self.world)
        ]

    @property
    def areas(self) -> list[int]:
        """Visible pairs of each rank."""
        return [sum(part.mask.area for part in parts) for parts in self._of_rank]

    @cached_property
    def _needed(self) -> list[tuple[range, ...]]:
        """The keys of each rank's parts."""
        return [union_of_keys(parts) for parts in self._of_rank]

    def key_rows(self, rank: int, owner: int) -> Rows:
        """The owner's rows that a rank needs, ascending."""
        return self._rows_of(self._needed[rank], owner)

    def num_received(self, rank: int) -> int:
        """Keys that a rank receives."""
        return sum(num_rows(self.key_rows(rank, owner)) for owner in range(self.world) if owner != rank)

    def rank_parts(self, rank: int) -> dict[int, RankPart]:
        """The rank's parts with visible keys, by round."""
        first_received = self._first_received(rank)
        found = {}
        for part in self._of_rank[rank]:
            rows = self._rows_of(part.rows, rank)
            keys: list[KeySource] = []
            of_owner: dict[int, list[tuple[int, int]]] = {}
            place = 0
            for needed, owner, start, end in self._pieces(rank, part.keys):
                first = start if owner == rank else first_received[owner][needed] + start
                piece = KeySource(owner == rank, first, first + end - start)
                keys.append(piece)
                of_owner.setdefault(owner, []).append((place, place + end - start))
                place += end - start
            found[part.number // self.world] = RankPart(
                part, rows, tuple(keys), {owner: tuple(pieces) for owner, pieces in of_owner.items()}
            )
        return found

    def addends(self, owner: int, number: int) -> list[Addend]:
        """dk and dv of a round for a rank's keys, in the order of parts."""
        found = [
            Addend(self._rank_of(part), self._rows_of(part.keys, owner))
            for part in self._parts
            if part.number // self.world == number
        ]
        return [addend for addend in found if len(addend)]

    def _rank_of(self, part: FixedPart) -> int:
        return int(self.sharding.part_owner[part.number])

    def _rows_of(self, ranges: Sequence[range], rank: int) -> Rows:
        """The rows of a rank in these ranges of tokens. The rows of one range are contiguous."""
        before = self.sharding.num_before_any
        rows = [(before(part.start)[rank], before(part.stop)[rank]) for part in ranges]
        return tuple((start, end) for start, end in rows if start < end)

    def _first_received(self, rank: int) -> list[list[int]]:
        """By owner and range of needed tokens: the row in what the rank receives, less the owner's row. The
        owners' rows follow each other."""
        before = self.sharding.num_before_any
        first = 0
        found = []
        for owner in range(self.world):
            of_owner = []
            for needed in self._needed[rank]:
                start, end = (before(edge)[owner] for edge in (needed.start, needed.stop))
                of_owner.append(first - start)
                first += end - start if owner != rank else 0
            found.append(of_owner)
        return found

    def _pieces(self, rank: int, ranges: Sequence[range]) -> Iterator[tuple[int, int, int, int]]:
        """(index in the rank's needed ranges, owner, its start and end) of keys of one owner, ascending."""
        edges = self.sharding.edges.tolist()
        for keys in ranges:
            needed = next(
                index
                for index, other in enumerate(self._needed[rank])
                if other.start <= keys.start < other.stop
            )
            for chunk, owner in enumerate(self.sharding.owner.tolist()):
                start = max(keys.start, edges[chunk])
                end = min(keys.stop, edges[chunk + 1])
                if start < end:
                    first = int(self.sharding.offset[chunk]) - edges[chunk]
                    yield needed, owner, start + first, end + first
