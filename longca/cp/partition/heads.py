"""The division of query and KV heads among ranks.

8 query heads and 2 KV heads (ratio 4) on 2, 4 and 3 ranks; each digit is the rank of a query head:

    KV head            0 0 0 0 1 1 1 1
    2 ranks            0 0 0 0 1 1 1 1    whole KV groups: each KV head goes to one rank
    4 ranks            0 0 1 1 2 2 3 3    more ranks than KV heads: KV head 0 is copied to ranks 0 and 1
    3 ranks            0 0 0 1 1 1 2 2    rank 1 cuts through both groups: its kernel call repeats a KV head (`expanded`)
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from longca.cp.partition.sharding import even_ranges


@dataclass(frozen=True)
class RankHeads:
    """The heads of one rank. Both ranges may be empty if there are more ranks than query heads."""

    q: range
    kv: range
    """KV heads of these query heads, which are sent to the rank"""
    local_kv: tuple[int, ...]
    """KV heads of the rank's kernel call, as indices into `kv`. A kernel assigns the same number of query
    heads to every KV head, so a KV head is repeated here if the rank's heads split a KV group"""

    @property
    def expanded(self) -> bool:
        """True if the kernel call repeats a KV head."""
        return len(self.local_kv) > len(self.kv)


@dataclass(frozen=True)
class HeadPlan:
    """The heads of all ranks, in the order of the heads.

    Each query head is on exactly one rank. In a plan of one chunk of the heads (`HeadChunk.heads`) it is on
    one rank at most.
    """

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
        """True if some KV head is on several ranks, so that its gradient is a sum over them."""
        return sum(len(share.kv) for share in self.ranks) > self.num_kv_heads

    def mask_groups(self, rank: int, num_groups: int) -> range | None:
        """The mask's head groups of a rank, or None if no kernel call can have these heads.

        A kernel assigns the same number of KV heads to each mask group, so a rank needs whole groups, or
        heads of a single group.

        Args:
            num_groups: head groups of the mask.
        """
        share = self.ranks[rank]
        size = self.num_kv_heads // num_groups
        groups = range(share.kv.start // size, -(-share.kv.stop // size))
        whole = not share.expanded and share.kv.start % size == 0 and share.kv.stop % size == 0
        return groups if whole or len(groups) == 1 else None


@lru_cache(maxsize=64)  # a study requests each of a few plans thousands of times
def plan_heads(num_q_heads: int, num_kv_heads: int, world: int) -> HeadPlan:
    """Divides the heads, in order, among `world` ranks.

    Ranks get whole KV groups if there are enough, so that no KV head is sent twice. With more ranks than KV
    heads the query heads are split, and each rank gets copies of its KV heads.
    """
    ratio = num_q_heads // num_kv_heads
    if world <= num_kv_heads:
        shares = (range(kv.start * ratio, kv.stop * ratio) for kv in even_ranges(num_kv_heads, world))
    else:
        shares = iter(even_ranges(num_q_heads, world))
    return HeadPlan(num_q_heads, num_kv_heads, tuple(share_of(q, ratio) for q in shares))


def share_of(q: range, ratio: int) -> RankHeads:
    """The share of a rank with these query heads.

    Args:
        ratio: query heads for each KV head.
    """
    if not q:
        return RankHeads(q, range(0), ())
    kv = range(q.start // ratio, -(-q.stop // ratio))
    served = [min(q.stop, (head + 1) * ratio) - max(q.start, head * ratio) for head in kv]
    # query heads for each KV head of the kernel call: the largest common divisor, which minimises copies
    step = math.gcd(*served)
    return RankHeads(q, kv, tuple(index for index, count in enumerate(served) for _ in range(count // step)))
