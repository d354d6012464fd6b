"""Which heads each rank computes when the heads of a call are divided among ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from longca.cp.partition.split import even_ranges


@dataclass(frozen=True)
class RankHeads:
    """One rank's share. Both ranges are empty where there are more ranks than query heads."""

    q: range
    kv: range
    """KV heads that these query heads attend to: the ones that are sent to the rank"""
    local_kv: tuple[int, ...]
    """KV heads of the rank's kernel call, as indices into `kv`. Kernels serve the same number of query heads by every KV head:
    where the share cuts through a KV group, a KV head stands here more than once"""

    @property
    def expanded(self) -> bool:
        return len(self.local_kv) > len(self.kv)


@dataclass(frozen=True)
class HeadPlan:
    """Shares of all ranks, in the order of the heads: each query head is in exactly one, or, of a chunk of the heads, in one at most."""

    num_q_heads: int
    num_kv_heads: int
    ranks: tuple[RankHeads, ...]

    @property
    def q(self) -> list[range]:
        return [share.q for share in self.ranks]

    @property
    def kv(self) -> list[range]:
        return [share.kv for share in self.ranks]

    @cached_property
    def replicated(self) -> bool:
        """Some KV head is on several ranks, so that its gradient is a sum over them."""
        return sum(len(share.kv) for share in self.ranks) > self.num_kv_heads

    def mask_groups(self, rank: int, num_groups: int) -> range | None:
        """The mask's head groups that a rank needs; None where its heads cannot be called with them.

        A kernel gives each of its mask groups the same number of KV heads, so they must be whole, or only one.
        """
        share, size = self.ranks[rank], self.num_kv_heads // num_groups
        groups = range(share.kv.start // size, -(-share.kv.stop // size))
        whole = not share.expanded and share.kv.start % size == 0 and share.kv.stop % size == 0
        return groups if whole or len(groups) == 1 else None


def plan_heads(num_q_heads: int, num_kv_heads: int, world: int) -> HeadPlan:
    """Heads in order over `world` ranks.

    Whole KV groups while there are enough of them, for then no KV head is sent twice. Beyond that, query heads, each rank
    with a copy of the KV heads that it needs.
    """
    ratio = num_q_heads // num_kv_heads
    if world <= num_kv_heads:
        shares = (range(kv.start * ratio, kv.stop * ratio) for kv in even_ranges(num_kv_heads, world))
    else:
        shares = iter(even_ranges(num_q_heads, world))
    return HeadPlan(num_q_heads, num_kv_heads, tuple(share_of(q, ratio) for q in shares))


def share_of(q: range, ratio: int) -> RankHeads:
    """Query heads, with the KV heads that they need; `ratio` query heads have one."""
    if not q:
        return RankHeads(q, range(0), ())
    kv = range(q.start // ratio, -(-q.stop // ratio))
    served = [min(q.stop, (head + 1) * ratio) - max(q.start, head * ratio) for head in kv]
    step = math.gcd(*served)  # query heads for each KV head of the kernel call: the most that go evenly, to expand the least
    return RankHeads(q, kv, tuple(index for index, count in enumerate(served) for _ in range(count // step)))
