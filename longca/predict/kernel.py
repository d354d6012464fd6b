"""The amounts of a kernel call, from which `longca.predict.fitted` makes its time: the pairs of tiles, and the idle
time of the division into work items.

Kernels compute whole tiles. A tile is a number of rows, which query heads of one KV head may share, by a
number of keys:

    tile                 its pairs are counted as
    ┌──────┐ all visible    full       nothing is masked
    ├──────┤ some visible   partial    all are computed, and some are masked
    └──────┘ none visible   empty      skipped, or looked at and skipped, or computed by kernels that take a dense mask

A kernel's programs divide the rows of tiles, or backward the columns. The tail wave leaves multiprocessors
idle, which `WorkSpread` estimates. Counts are for one query head.

In masks with many head groups of the same distribution, two are counted. In masks with very many queries,
equally spaced pieces are counted.

Kernel-specific algorithms: rules of single kernels that are not fitted to records.

    kernel        direction   rule
    band          bwd         one pass, whose work tiles add to dQ in one order or another, or two kernels: as its operator chooses
    fa2           fwd         items of work start in the order of the sequence; `torch_flash` is the same code
    band          both        items of work are divided that take longer than half a multiprocessor's share, but not in one pass; forward
                              its operator has a finer limit
    cudnn_graph   bwd         a window that looks ahead as well as back is computed over the whole square, and masked there
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from longca.lowering import tile_counts
from longca.masks import Mask, band
from longca.ops.band import AddOrder, orders_of_parts

if TYPE_CHECKING:
    from longca.masks import Traits

MOST_GROUPS = 2
MOST_ROWS = 1 << 19  # counted queries
PIECE_ROWS = 4096  # queries of a piece
PROGRAMS = 132  # multiprocessors of an H200 and of an H100
TWO_KERNELS = "two kernels"
FROM_LAST = "one pass from the last row"
FROM_FIRST = "one pass from the first row"
ORDERS = {AddOrder.FROM_LAST: FROM_LAST, AddOrder.FROM_FIRST: FROM_FIRST}
WAYS = np.array([*(ORDERS.get(order, TWO_KERNELS) for order in AddOrder), TWO_KERNELS])
"""by order; the last is that of −1, two kernels"""
# of `RESIDENT_PROGRAMS` in longca/ops/band/plan.py: two for each multiprocessor
OWN = ("band",)
OWN_MOST = 0.5
# blocks of the grid: row tiles of queries, from the first to the last, then heads
IN_ORDER = ("fa2", "torch_flash")
DKDV_MATMULS = 4  # matmuls of the kernel for dK and dV
BOTH_MATMULS = 7  # of both kernels
FEATURES = ("computed", "partial", "empty", "unshared", "rows", "call")
"""10⁶ computed pairs of all heads, plus the pairs that idle multiprocessors could compute during the tail
wave (`WorkSpread.idle`); pairs in partial tiles, for the additional cost of their masks; pairs in empty
tiles; computed pairs divided by the heads that share a KV head; 10⁶ rows; 1"""


@dataclass(frozen=True)
class TileShape:
    """A tile of the score matrix. With `pack` > 1 its rows belong to several query heads of one KV head."""

    rows: int
    keys: int
    pack: int = 1
    """query heads that share a tile, at most"""
    per_block: bool = False
    """in block masks, tiles restart at each block: a block narrower than a tile takes a whole tile"""

    def tokens(self, heads_per_kv: int) -> int:
        """Number of tokens in the rows of a tile."""
        return max(self.rows // min(self.pack, heads_per_kv), 1)


@dataclass(frozen=True, eq=False)
class WorkSpread:
    """Pairs of each work item of one query head: of rows of tiles, or of columns of tiles."""

    pairs: np.ndarray
    """(n,), the largest first"""
    last: float = 0.0
    """pairs of the last item in the order of the sequence"""
    repeats: int = 1
    """number of items that each counted item represents"""

    @classmethod
    def of(cls, pairs: np.ndarray) -> WorkSpread:
        some = pairs[pairs > 0]
        return cls(np.sort(some)[::-1], float(some[-1]) if len(some) else 0.0)

    def idle(self, copies: int, most: float = math.inf, *, in_order: bool = False) -> float:
        """Idle capacity (in pairs) of the tail wave.

        Items are assigned to free multiprocessors, the largest first. One multiprocessor gets k + 1 of the
        first k · PROGRAMS + 1 items; the largest of these sums over all k estimates the total time. In the
        order of the sequence, some of the last items have just begun when none is left to start; the mean
        wait is half an item.

        Args:
            copies: number of copies of each item: one for each head, or each KV head.
            most: largest item, as a fraction of a multiprocessor's share of all pairs; longer items are split
                into equal parts.
            in_order: items start in the order of the sequence.
        """
        copies *= self.repeats
        pairs = self.pairs
        total = float(self.pairs.sum()) * copies
        if len(pairs) and pairs[0] * PROGRAMS > most * total:
            parts = np.ceil(pairs * PROGRAMS / (most * total)).astype(int)
            pairs = np.sort(np.repeat(pairs / parts, parts))[::-1]
        rounds = np.arange(-(-len(pairs) * copies // PROGRAMS))
        if not len(rounds):
            return 0.0
        until = float(((rounds + 1) * pairs[rounds * PROGRAMS // copies]).max())
        return max(until * PROGRAMS - total, PROGRAMS * self.last / 2 if in_order else 0.0)


@dataclass(frozen=True, eq=False)
class TileStatistics:
    """Pairs of one query head, by kind of tile."""

    area: float
    """visible pairs"""
    full: float
    partial: float
    empty: float
    rows: int
    """queries"""
    of_rows: WorkSpread
    count_columns: Callable[[], WorkSpread]

    @cached_property
    def of_columns(self) -> WorkSpread:
        """Columns of tiles; counted on demand, since only backward kernels iterate by keys."""
        return self.count_columns()

    @property
    def computed(self) -> float:
        return self.full + self.partial

    @property
    def waste(self) -> float:
        """The hidden share of computed pairs; 0 if nothing is computed."""
        return 1 - self.area / self.computed if self.computed else 0.0


def tile_statistics(mask: Mask, shape: TileShape, heads_per_kv: int) -> TileStatistics:
    """Counts the tiles of a mask, exactly except for uncounted groups.

    Args:
        heads_per_kv: query heads for each KV head.
    """
    if mask.seqlen_q > MOST_ROWS:
        return _of_pieces(mask, shape, heads_per_kv)
    tokens = shape.tokens(heads_per_kv)
    groups = range(min(mask.num_groups, MOST_GROUPS))
    lines = _block_lines if shape.per_block and mask.grid is not None else _tile_lines
    counted = [lines(mask, tokens, shape.keys, group) for group in groups]
    full, partial = (float(np.mean([part.sum() for part in parts])) for parts in zip(*counted, strict=True))
    empty = max(float(mask.seqlen_q) * mask.seqlen_k - full - partial, 0.0)
    return TileStatistics(
        mask.area / mask.num_groups,
        full,
        partial,
        empty,
        mask.seqlen_q,
        WorkSpread.of(sum(counted[0], np.zeros(1))),
        lambda: WorkSpread.of(sum(lines(mask, tokens, shape.keys, 0, columns=True), np.zeros(1))),
    )


def _tile_lines(
    mask: Mask, tokens: int, keys: int, group: int, *, columns: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs in full and in partial tiles of each row of tiles, or of each column, (n,) each."""
    full, partial = tile_counts(mask, tokens, keys, group, columns=columns)
    size = float(tokens * keys)
    return full * size, partial * size


def _block_lines(
    mask: Mask, tokens: int, keys: int, group: int, *, columns: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The same with tiles that restart at each block. Tiles beyond the end of a block count as full, since
    they need no mask."""
    assert mask.grid is not None
    visible, q_bounds, k_bounds = mask.grid.solid(group)
    height, width = (
        -(-np.diff(bounds) // size) * size for bounds, size in ((q_bounds, tokens), (k_bounds, keys))
    )
    seen = visible.astype(float)
    tiles = (
        np.repeat(height @ seen * keys, width // keys)
        if columns
        else np.repeat(seen @ width * tokens, height // tokens)
    )
    return tiles, np.zeros_like(tiles)


def _of_pieces(mask: Mask, shape: TileShape, heads_per_kv: int) -> TileStatistics:
    """The statistics of pieces of the queries, scaled to the whole mask by its visible pairs. Columns are
    assumed to be as long as rows."""
    count = MOST_ROWS // PIECE_ROWS
    starts = (
        np.linspace(0, mask.seqlen_q - PIECE_ROWS, count).astype(np.int64) // PIECE_ROWS * PIECE_ROWS
    ).tolist()
    if mask.grid is None and PIECE_ROWS % shape.tokens(heads_per_kv) == 0:  # no tile overlaps two pieces
        # the last one is needed for `WorkSpread.last`
        parts = [_one_below_the_other(mask, starts[:-1]), _one_below_the_other(mask, starts[-1:])]
    else:
        parts = [mask.crop((start, start + PIECE_ROWS), (0, mask.seqlen_k)) for start in starts]
    pieces = [tile_statistics(part, shape, heads_per_kv) for part in parts]
    area, full, partial = (
        sum(getattr(piece, name) for piece in pieces) for name in ("area", "full", "partial")
    )
    factor = mask.area / mask.num_groups / area if area else 0.0
    full = full * factor
    partial = partial * factor
    empty = max(float(mask.seqlen_q) * mask.seqlen_k - full - partial, 0.0)
    rows = WorkSpread.of(np.concatenate([piece.of_rows.pairs for piece in pieces]))
    rows = WorkSpread(rows.pairs, rows.last, round(mask.seqlen_q / (count * PIECE_ROWS)))
    return TileStatistics(
        mask.area / mask.num_groups, full, partial, empty, mask.seqlen_q, rows, lambda: rows
    )


def _one_below_the_other(mask: Mask, starts: list[int]) -> Mask:
    """The pieces of a band mask that begin at these queries, stacked into one mask that is counted in one
    pass."""
    key = "pieces of rows", tuple(starts)
    if key not in mask.kept:
        height = PIECE_ROWS
        groups = tuple(
            np.concatenate(
                [
                    band.shift(
                        band.cut(bands, (start, start + height), (0, mask.seqlen_k)),
                        number * height - start,
                        0,
                    )
                    for number, start in enumerate(starts)
                ]
            )
            for bands in mask.groups
        )
        mask.kept[key] = Mask(len(starts) * height, mask.seqlen_k, groups)
    return mask.kept[key]


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
