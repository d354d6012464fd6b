"""Statistics of a mask's tiles, from which the time of a kernel call is estimated.

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
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longca.lowering import tile_counts
from longca.masks import Mask, band

MOST_GROUPS = 2
MOST_ROWS = 1 << 19  # counted queries
PIECE_ROWS = 4096  # queries of a piece
PROGRAMS = 132  # multiprocessors of an H200 and of an H100


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
