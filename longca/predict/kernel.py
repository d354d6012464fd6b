"""The time of a kernel call: a sum of a few costs times the amounts of a call, and the slowdown of long calls
by the clock.

    time at full clock = Σ cost · amount          amounts: FEATURES, costs: never negative, fitted on records
    time               = time at full clock · slowdown        1 for short calls, `1 + throttle` for long ones

A GPU keeps its highest clock for a few milliseconds. Then the power limit slows all computation by about the
same factor, for any kernel:

    slowdown   1 + throttle │                 ┌───────
                            │             ╱
                          1 │────────┘
                            └────────┴────────┴──────── time at full clock
                                  BOOST_S   SETTLED_S

Kernel-specific algorithms: rules of single kernels that are not fitted to records.

    kernel        direction   rule
    band          bwd         one pass, whose work tiles add to dQ in one order or another, or two kernels: as its operator chooses
    fa2           fwd         items of work start in the order of the sequence; `torch_flash` is the same code
    band          both        items of work are divided that take longer than half a multiprocessor's share, but not in one pass; forward
                              its operator has a finer limit
    cudnn_graph   bwd         a window that looks ahead as well as back is computed over the whole square, and masked there

A kernel with several algorithms has a model for each (`KernelModel.way`). All other kernels have one unnamed
model.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.ops.band import AddOrder, orders_of_parts
from longca.predict.tile_statistics import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from longca.masks import Mask, Traits
    from longca.predict.tile_statistics import TileShape, TileStatistics

TWO_KERNELS = "two kernels"
FROM_LAST = "one pass from the last row"
FROM_FIRST = "one pass from the first row"
ORDERS = {AddOrder.FROM_LAST: FROM_LAST, AddOrder.FROM_FIRST: FROM_FIRST}
WAYS = np.array([*(ORDERS.get(order, TWO_KERNELS) for order in AddOrder), TWO_KERNELS])
"""by order; the last is that of −1, two kernels"""
BANDS = ("band", "band_atomic")
# of `RESIDENT_PROGRAMS` in longca/ops/band/plan.py: two for each multiprocessor
OWN = ("band",)
OWN_MOST = 0.5
# blocks of the grid: row tiles of queries, from the first to the last, then heads
IN_ORDER = ("fa2", "torch_flash")
DKDV_MATMULS = 4  # matmuls of the kernel for dK and dV
BOTH_MATMULS = 7  # of both kernels
# commits of records of earlier kernels of `band`
EARLIER_RECORDS = ("472f5e6", "7df73e2", "d3404dd", "8337dc1", "50cde0b", "ad40a9a")


def ran_earlier(kernel: str, git_sha: str) -> bool:
    """True if records of a kernel at a commit are of `band` before its present kernels."""
    return kernel in BANDS and git_sha.startswith(EARLIER_RECORDS)


def way_of(kernel: str, direction: str, mask: Mask, num_kv_heads: int) -> str:
    """The algorithm of a kernel for a call; "" for kernels with a single one."""
    if (kernel, direction) != ("band", "bwd"):
        return ""
    if mask.grid is not None:
        return TWO_KERNELS
    return str(ways_of_parts(mask, mask.area / mask.num_groups, mask.seqlen_q, mask.seqlen_k, num_kv_heads))


def ways_of_parts(
    mask: Mask,
    area: np.ndarray | float,
    num_queries: np.ndarray | float,
    num_keys: np.ndarray | float,
    num_kv_heads: int,
) -> np.ndarray:
    """The backward algorithm of `band` for each part of a mask, or for the whole; the shape is that of the
    numbers, which refer to one head group.

    If the last query of the whole mask sees nearly all keys, so does that of every part; parts of a window
    are windows.
    """
    return WAYS[orders_of_parts(mask, area, num_queries, num_keys, num_kv_heads)]


def covers_all(kernel: str, direction: str, traits: Traits) -> bool:
    """True if a kernel computes all pairs of a call, including hidden ones."""
    window = traits.window
    return (
        (kernel, direction) == ("cudnn_graph", "bwd")
        and window is not None
        and window[0] >= 0
        and window[1] != 0
    )


@dataclass(frozen=True)
class Items:
    """The division of a call into work items for a kernel's programs."""

    by_keys: bool
    """True if an item has some keys and all queries that see them, False for some queries and all keys that
    they see"""
    all_heads: bool
    """True if an item covers all query heads of a KV head, False for the heads of one tile"""
    most: float = math.inf
    """largest item, as a fraction of a multiprocessor's share of the whole call; longer items are split"""
    share: float = 1.0
    """share of the whole call's time in the kernel with these items"""
    in_order: bool = False
    """True if items of a head start in the order of the sequence, False for the longest first"""


def items_of(kernel: str, direction: str, way: str) -> Items:
    """The items of a kernel. The default is that of FlashAttention: backward by keys and query heads."""
    own = kernel in OWN and way not in (FROM_LAST, FROM_FIRST)
    most = OWN_MOST if own else math.inf
    if direction == "fwd":
        return Items(by_keys=False, all_heads=False, most=most, in_order=kernel in IN_ORDER)
    return Items(by_keys=True, all_heads=own, most=most, share=DKDV_MATMULS / BOTH_MATMULS if own else 1.0)


FEATURES = ("computed", "partial", "empty", "unshared", "rows", "call")
"""10⁶ computed pairs of all heads, plus the pairs that idle multiprocessors could compute during the tail
wave (`WorkSpread.idle`); pairs in partial tiles, for the additional cost of their masks; pairs in empty
tiles; computed pairs divided by the heads that share a KV head; 10⁶ rows; 1"""
FITTED_HEAD_DIM = 128
LONG_ROWS = 0.25
# share of held-out residuals in an interval, such that it contains 90 % of other cells, as
# `benchmarks.predict.errors` checks
NOMINAL = 0.96
# of an H200, the same for all kernels and both directions: see docs/results/h200/prediction.md
BOOST_S = 6e-3
SETTLED_S = 24e-3


def form_labels(traits: Traits, heads_per_kv: int) -> dict[str, str]:
    """The labels of a call, for which some kernels have special algorithms.

    "long": a query sees a quarter of all keys or more, in bands. "packed": the mask is segments of tokens
    under one window, for which kernels need no tile lists.
    """
    seen = traits.area / max(traits.num_groups * traits.seqlen_q * traits.seqlen_k, 1)
    return {
        "plain": "plain" if traits.full or traits.causal else "masked",
        "rows": "long" if seen >= LONG_ROWS and not traits.is_block_grid else "short",
        "heads": "grouped" if heads_per_kv > 1 else "equal",
        "lists": "packed" if traits.num_segments or traits.full else "listed",
        "blocks": "blocks" if traits.is_block_grid else "bands",
    }


def part_kind(traits: Traits) -> str:
    """The kind of a mask, in the plural, whose parts kernels attend to in context parallelism: "windows"."""
    if traits.is_block_grid:
        return "blocks"
    if traits.full or traits.causal:
        return "full or causal masks"
    if traits.num_segments > 1:
        return "documents"
    return "windows" if traits.num_segments else "other bands"


def amounts(
    statistics: TileStatistics,
    shape: TileShape,
    items: Items,
    num_q_heads: int,
    num_kv_heads: int,
    *,
    covered: bool = False,
) -> np.ndarray:
    """The amounts of FEATURES in a call, (6,).

    Args:
        items: work items, from `items_of`.
        covered: every pair is computed, from `covers_all`.
    """
    heads = heads_of_item(items, shape, num_q_heads // num_kv_heads)
    spread = statistics.of_columns if items.by_keys else statistics.of_rows
    full, empty = (
        (statistics.full + statistics.empty, 0.0) if covered else (statistics.full, statistics.empty)
    )
    idle = spread.idle(num_q_heads // heads, items.most, in_order=items.in_order) * heads * items.share
    return part_amounts(full, statistics.partial, empty, statistics.rows, idle, num_q_heads, num_kv_heads)


def heads_of_item(items: Items, shape: TileShape, heads_per_kv: int) -> int:
    """Query heads of an item of work."""
    if items.all_heads:
        return heads_per_kv
    return 1 if items.by_keys else min(shape.pack, heads_per_kv)


def even_idle(computed: np.ndarray, num_items: np.ndarray, *, in_order: bool = False) -> np.ndarray:
    """`WorkSpread.idle` for items of equal length.

    Args:
        computed: pairs of all heads.
        num_items: of all heads.
        in_order: items start in the order of the sequence.
    """
    items = np.maximum(np.ceil(num_items), 1)
    idle = computed * (np.ceil(items / PROGRAMS) * PROGRAMS / items - 1)
    return np.maximum(idle, computed / items * PROGRAMS / 2) if in_order else idle


def part_amounts(
    full: np.ndarray | float,
    partial: np.ndarray | float,
    empty: np.ndarray | float,
    rows: np.ndarray | float,
    idle: np.ndarray | float,
    num_q_heads: int,
    num_kv_heads: int,
) -> np.ndarray:
    """`amounts` of calls whose numbers are arrays of one shape, (…, 6): of one query head, but for `idle`,
    which is of all."""
    computed = np.add(full, partial)
    columns = (
        computed * num_q_heads + idle,
        np.multiply(partial, num_q_heads),
        np.multiply(empty, num_q_heads),
        computed * num_kv_heads,
        np.multiply(rows, num_q_heads),
    )
    found = np.empty((*np.shape(columns[0]), len(FEATURES)))
    for number, column in enumerate(columns):
        found[..., number] = column
    found /= 1e6
    found[..., -1] = computed > 0
    return found


@dataclass(frozen=True)
class Interval:
    """Relative residuals of records held out of the fit: measured over predicted, minus 1."""

    low: float
    high: float
    """bounds that contain NOMINAL of the residuals"""
    median: float
    """median of their absolute values"""
    p95: float
    num_records: int

    @classmethod
    def of(cls, residuals: Sequence[float] | np.ndarray, coverage: float = NOMINAL) -> Interval:
        """The interval of these residuals, with equal numbers below and above."""
        values = np.sort(np.asarray(residuals, dtype=float))
        low, high = np.quantile(values, [(1 - coverage) / 2, (1 + coverage) / 2])
        size = np.abs(values)
        return cls(
            float(low), float(high), float(np.median(size)), float(np.quantile(size, 0.95)), len(values)
        )

    def widened(self, factor: float) -> Interval:
        """The interval scaled about its centre by this factor."""
        centre = (self.low + self.high) / 2
        half = (self.high - self.low) / 2 * factor
        return Interval(max(centre - half, -0.95), centre + half, self.median, self.p95, self.num_records)


def widest(intervals: Sequence[Interval]) -> Interval:
    """The union of these intervals."""
    return Interval(
        min(interval.low for interval in intervals),
        max(interval.high for interval in intervals),
        max(interval.median for interval in intervals),
        max(interval.p95 for interval in intervals),
        min(interval.num_records for interval in intervals),
    )


@dataclass(frozen=True)
class KernelModel:
    """The fitted costs of one kernel in one direction."""

    kernel: str
    direction: str
    shape: TileShape
    """the best-fitting tiles, which may differ from the kernel's own"""
    costs_ms: Mapping[str, float]
    """milliseconds for one of each of FEATURES"""
    throttle: float
    """slowdown of long calls at the clock under the power limit"""
    by_mask: Interval
    """residuals of held-out masks"""
    by_length: Interval
    """residuals of held-out lengths"""
    longest_tokens: int
    """the largest length among the records"""
    form: tuple[str, ...] = ()
    """the calls of this model, by labels of `form_labels`; all calls if empty"""
    way: str = ""
    """the kernel's algorithm of this model, of `longca.predict.kernel`"""
    source: str = "records"
    """`records`, or `share of peak` without records"""

    def boosted_s(self, amounts: np.ndarray, head_dim: int = FITTED_HEAD_DIM) -> np.ndarray:
        """Seconds at full clock, (…,), of calls with these amounts (…, 6). All costs except that of the call
        itself scale with the head dim."""
        costs = self._costs.copy()
        costs[:-1] *= head_dim / FITTED_HEAD_DIM
        return amounts @ costs / 1e3

    @cached_property
    def _costs(self) -> np.ndarray:
        """`costs_ms` in the order of FEATURES."""
        return np.array([self.costs_ms[name] for name in FEATURES])

    def slowdown(self, boosted_s: np.ndarray | float) -> np.ndarray | float:
        """The slowdown of work of this many seconds at full clock."""
        return clock_slowdown(boosted_s, self.throttle)


def clock_slowdown(boosted_s: np.ndarray | float, throttle: float) -> np.ndarray | float:
    """`KernelModel.slowdown` for a given throttle."""
    progress = np.log(np.maximum(boosted_s, BOOST_S) / BOOST_S) / np.log(SETTLED_S / BOOST_S)
    return 1 + throttle * np.minimum(progress, 1)


def at_full_clock(measured_s: np.ndarray, throttle: float) -> np.ndarray:
    """The seconds at full clock of a measured time: the inverse of t · slowdown(t), (n,)."""
    low = measured_s / (1 + throttle)
    high = measured_s.copy()
    for _ in range(40):
        middle = (low + high) / 2
        late = middle * clock_slowdown(middle, throttle) > measured_s
        low = np.where(late, low, middle)
        high = np.where(late, middle, high)
    return (low + high) / 2
