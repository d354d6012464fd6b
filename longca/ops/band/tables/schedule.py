"""Lines: what one kernel of band attention has to do, as tables on the device.

A **line** is up to `tile` neighbouring rows of one axis: queries for the forward pass and dQ, keys for dK and dV. It visits the
other axis in **steps** of `step` neighbouring columns, which may begin anywhere: all positions are token numbers, never tile
numbers. A step is *full* if every row of its line sees all its columns (which then all exist), so that it needs no mask and no
bounds; else it is *partial* and has a **shape**: which of its columns each row sees, relative to where the step begins.

A **piece** is a line, or a part of a line that would take much longer than others. Pieces are what programs work on.
"""

from dataclasses import dataclass

import torch

ROW0, ROW1, FIRST, MIDDLE, LAST, NUM_FULL, SLOT, LINE = range(8)  # columns of `pieces`


@dataclass(frozen=True)
class Wanted:
    """Which lines to make."""

    tile: int  # most rows of a line: queries, or, with `transposed`, keys
    step: int  # columns
    transposed: bool
    longest: float = 1.0  # share of the steps of all lines that a piece may have; lines with more are cut
    least: int = 16  # steps that are never too many
    # Pieces wait for each other, and go from the last column to the first; those of about the same length are sorted by their rows, which
    # under most masks lets who comes first stay ahead.
    in_order: bool = False


@dataclass(frozen=True, eq=False)
class Lines:
    """All tensors are int32, contiguous and on one device. Shapes: M head groups, W most pieces of a group.

    A piece works on rows [ROW0, ROW1) with

    - the full runs `runs[FIRST:MIDDLE]`, each (column, n): n full steps, at column, column + step, column + 2·step … NUM_FULL is
      the sum of these n;
    - the partial steps `runs[MIDDLE:LAST]`, each (column, shape), one step each.

    Lines that see the same may share their runs.

    No (row, column) pair is seen twice: steps of a line overlap only where one of them is partial, and its shape leaves out what
    another step shows. A step that sticks out of the tensor is partial. A row may see nothing in a step, in a piece, or at all: a
    line that sees nothing still has a piece, with FIRST = MIDDLE = LAST.

    `shapes[s, r]` packs two numbers: row ROW0 + r sees the columns column + c with `first <= c < behind`, where first = x & 0xFFFF and
    behind = x >> 16 (first = behind = 0: none). Shapes of rows from ROW1 on say nothing; those rows are not to be stored.

    SLOT is −1 for a piece that is its whole line and writes the result. Else the piece writes a float32 share of it to slot SLOT
    (tile rows for each head that works on this group), and LINE is the line's place in `splits`: (ROW0, ROW1, first slot, slots).
    Slots of a line are successive and are combined in that order, so that results repeat bit for bit.

    Pieces of a group are sorted longest first (or nearly, where they wait for each other) and padded to W with pieces of no rows
    (ROW0 = ROW1).
    With several query heads for a KV head, P of them can share a tile: `tile` (or `step`, for keys' lines) is then in tokens, the
    matrix has P rows for each, row r of the matrix being token r // P and head r % P of the pack.

    Pieces that add to their columns one after the other, in the order of `pieces`, and from the last column to the first, find in
    `waits[slice(*waits_of[m, piece])]` whom to wait for: (column, another piece or −1) for the columns from there to the entry before.
    """

    tile: int
    step: int
    pieces: torch.Tensor  # (M, W, 8)
    runs: torch.Tensor  # (R, 2)
    shapes: torch.Tensor  # (U, tile)
    splits: torch.Tensor  # (M, V, 4), padded with lines of no slots
    num_slots: int  # of the group with most
    waits: torch.Tensor  # (N, 2), of no rows where pieces do not wait for each other
    waits_of: torch.Tensor  # (M, W, 2)

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        return self.pieces, self.runs, self.shapes, self.splits, self.waits, self.waits_of
