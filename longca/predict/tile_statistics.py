"""Statistics of a mask's tiles, from which the time of a kernel call is estimated.

Kernels compute whole tiles. A tile has so many rows, which query heads of one KV head may share, and so many keys:

    tile                 its pairs are counted as
    ┌──────┐ all visible    full       nothing is masked
    ├──────┤ some visible   partial    all are computed, and some are masked
    └──────┘ none visible   empty      skipped, or looked at and skipped, or computed by kernels that take a dense mask

Counts are those of one query head. Of masks with many head groups, which are drawn alike, two are counted. Of masks with very many
queries, pieces at equal distances are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.lowering.tiles import row_tiles

if TYPE_CHECKING:
    from longca.lowering.ranges import Runs
    from longca.masks.mask import Mask

MOST_GROUPS = 2
MOST_ROWS, PIECE_ROWS = 1 << 19, 4096  # of the queries that are counted, and of a piece


@dataclass(frozen=True)
class TileShape:
    """A tile of the score matrix. With `pack` > 1 its rows are those of several query heads that share their KV head."""

    rows: int
    keys: int
    pack: int = 1
    """query heads that share a tile, at most"""

    def tokens(self, heads_per_kv: int) -> int:
        """Tokens whose rows a tile holds."""
        return max(self.rows // min(self.pack, heads_per_kv), 1)


@dataclass(frozen=True)
class TileStatistics:
    """Pairs of one query head, by the kind of their tile."""

    area: float
    """visible pairs"""
    full: float
    partial: float
    empty: float
    longest: float
    """computed pairs of the row of tiles that has most"""
    rows: int
    """queries"""

    @property
    def computed(self) -> float:
        return self.full + self.partial

    @property
    def waste(self) -> float:
        """The share of computed pairs that are hidden; 0 where nothing is computed."""
        return 1 - self.area / self.computed if self.computed else 0.0


def tile_statistics(mask: Mask, shape: TileShape, heads_per_kv: int) -> TileStatistics:
    """Counts the tiles of a mask, exactly but for groups that are left out.

    Args:
        heads_per_kv: query heads for each KV head.
    """
    if mask.seqlen_q > MOST_ROWS:
        return _of_pieces(mask, shape, heads_per_kv)
    tokens, groups = shape.tokens(heads_per_kv), range(min(mask.num_groups, MOST_GROUPS))
    size, found = tokens * shape.keys, []
    for group in groups:
        tiles = row_tiles(mask, tokens, shape.keys, group)
        full, partial = (_by_line(runs, tiles.num_lines) for runs in (tiles.full_runs, tiles.partial_runs))
        longest = (full + partial).max(initial=0) * (shape.rows // tokens)
        found.append((full.sum(), partial.sum(), tiles.num_lines * tiles.num_across - full.sum() - partial.sum(), longest))
    full, partial, empty, longest = (float(np.mean(column)) * size for column in zip(*found, strict=True))
    return TileStatistics(mask.area / mask.num_groups, full, partial, empty, longest, mask.seqlen_q)


def _of_pieces(mask: Mask, shape: TileShape, heads_per_kv: int) -> TileStatistics:
    """The statistics of pieces of the queries, scaled to the whole mask by its visible pairs."""
    count = MOST_ROWS // PIECE_ROWS
    starts = np.linspace(0, mask.seqlen_q - PIECE_ROWS, count).astype(np.int64) // PIECE_ROWS * PIECE_ROWS
    pieces = [tile_statistics(mask.crop((start, start + PIECE_ROWS), (0, mask.seqlen_k)), shape, heads_per_kv) for start in starts.tolist()]
    area, full, partial = (sum(getattr(piece, name) for piece in pieces) for name in ("area", "full", "partial"))
    factor = mask.area / mask.num_groups / area if area else 0.0
    full, partial = full * factor, partial * factor
    empty = max(float(mask.seqlen_q) * mask.seqlen_k - full - partial, 0.0)
    return TileStatistics(mask.area / mask.num_groups, full, partial, empty, max(piece.longest for piece in pieces), mask.seqlen_q)


def _by_line(runs: Runs, num_lines: int) -> np.ndarray:
    """Tiles of each line, (num_lines,)."""
    return np.bincount(runs.lines, runs.bounds[:, 1].astype(np.int64) - runs.bounds[:, 0], num_lines)
