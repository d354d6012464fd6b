"""The schedule of a band attention kernel: its work, as tables on the device.

A **row tile** is up to `tile_m` neighbouring rows of one axis: queries for the forward pass and dQ, keys for
dK and dV. The kernel iterates over the other axis in **blocks** of `tile_n` neighbouring columns (for
queries: KV blocks). Blocks may begin anywhere: all positions are token numbers, never tile numbers. A block
is *full* if every row of its row tile sees all its columns (which then all exist), so that it needs no mask
and no bounds. Else it is *partial* and has a **partial-block mask**: which of its columns each row sees,
relative to the block's first column.

    row tile of 4 rows         column → 0       4       8       12
                                        ┌───────┬───────┬─┬─┬─┬─┐
                                        │ full  │ full  │█│ │ │ │   2 contiguous full blocks: one entry (0, 2)
                                        │       │       │█│█│ │ │   1 partial block: one entry (8, mask)
                                        │       │       │█│█│█│ │
                                        └───────┴───────┴─┴─┴─┴─┘

A **work tile** is a row tile, or one split of a row tile that would take much longer than others. Programs
work on work tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.heads import MIN_BLOCKS

# columns of `work_tiles`
ROW_START, ROW_END, FULL_START, PARTIAL_START, PARTIAL_END, NUM_FULL, SLOT, NARROW = range(8)
NUM_COLUMNS = 8


@dataclass(frozen=True)
class TileSpec:
    """Sizes and rules of the tiles."""

    tile_m: int  # most rows of a row tile: queries, or, with `transposed`, keys
    tile_n: int  # columns of a block
    transposed: bool
    # of the blocks of all row tiles, in one work tile; row tiles with more are split
    max_fraction: float = 1.0
    min_blocks: int = MIN_BLOCKS  # work tiles of up to this many blocks are never split
    # work tiles wait for each other, sorted so that predecessors stay ahead
    in_order: AddOrder = AddOrder.ANY
    # compute `TileSchedule.stores_first`, which needs a synchronisation with the device
    stores_first: bool = False
    # a partial block is narrow if no row sees a column of it from this one on; 0: none is. Not with
    # `in_order`
    narrow_n: int = 0


@dataclass(frozen=True, eq=False)
class TileSchedule:
    """The tables of one kernel. All tensors are int32, contiguous and on one device. M: head groups, W: most
    work tiles of a group.

    A work tile has the rows [ROW_START, ROW_END) and

    - the contiguous full blocks `block_ranges[FULL_START:PARTIAL_START]`, each (column, n): n full blocks, at
      column, column + tile_n, column + 2 · tile_n … NUM_FULL is the sum of these n;
    - the partial blocks `block_ranges[PARTIAL_START:PARTIAL_END]`, each (column, mask), one block each.

    Row tiles that see the same may share their block ranges.

    No (row, column) pair is seen twice: blocks of a row tile overlap only where one of them is partial, and
    its mask leaves out what another block shows. A block that sticks out of the tensor is partial. A row may
    see nothing in a block, in a work tile, or at all: a row tile that sees nothing still has a work tile,
    with FULL_START = PARTIAL_START = PARTIAL_END.

    `partial_masks[s, r]` packs two numbers x: row ROW_START + r sees the columns column + c with `start <= c
    < end`, where start = x & 0xFFFF and end = x >> 16 (start = end = 0: none). Masks of rows from ROW_END on
    say nothing; these rows are not stored.

    NARROW is 1 + the mask of the work tile's first partial block where that block is narrow
    (`TileSpec.narrow_n`) and not the work tile's only one. A kernel may then compute fewer of its columns.
    Else NARROW is 0. Narrow blocks come before other partial ones.

    SLOT is −1 for a work tile that is its whole row tile and writes the result. Else it is a split: it writes
    its float32 partial result to slot SLOT (tile_m rows for each head that works on this group). `splits` has
    its row tile as (ROW_START, ROW_END, first slot, slots). Slots of a row tile are successive and are
    combined in that order, so that results repeat bit for bit.

    Work tiles of a group are sorted longest first (where they wait for each other as in `AddOrder`) and
    padded to W with work tiles of no rows (ROW_START = ROW_END).

    With several query heads for a KV head, P of them can share a tile: `tile_m` (or `tile_n`, for row tiles
    of keys) is then in tokens, the matrix has P rows for each, row r of the matrix being token r // P and
    head r % P of the pack.

    Work tiles that add to their columns one after the other, in the order of `work_tiles`, and from the last
    column to the first, find in `waits[slice(*wait_ranges[m, tile])]` for whom to wait: (column, another work
    tile or −1) for the columns from there to the entry before. For those that go from the first column to the
    last, columns count backwards: [c, d) is [−d, −c) there.
    """

    tile_m: int
    tile_n: int
    work_tiles: torch.Tensor  # (M, W, 8)
    block_ranges: torch.Tensor  # (R, 2)
    partial_masks: torch.Tensor  # (U, tile_m)
    splits: torch.Tensor  # (M, V, 4), padded with row tiles of no slots
    num_slots: int  # of the group with most
    waits: torch.Tensor  # (N, 2), of no rows where work tiles do not wait for each other
    wait_ranges: torch.Tensor  # (M, W, 2)
    # computed on request: work tiles cover all columns and rows, and each block is entirely in an earlier
    # tile or not at all
    stores_first: bool = False

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        return tuple(getattr(self, name) for name in TABLES)

    def with_tables(self, tables: Sequence[torch.Tensor]) -> "TileSchedule":
        """The same schedule with other `tables`, in their order."""
        return replace(self, **dict(zip(TABLES, tables, strict=True)))


# A schedule's fields that are tables, and those that are numbers with their types, each in their order.
TABLES = tuple(field.name for field in fields(TileSchedule) if field.type is torch.Tensor)
NUMBERS = {
    field.name: bool if field.type is bool else int
    for field in fields(TileSchedule)
    if field.name not in TABLES
}
