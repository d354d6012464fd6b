"""Tile schedules against the raster: every visible pair is visited once, and no other."""

import numpy as np
import torch

from longca.masks import Mask
from longca.ops.band.plan import make_schedules
from longca.ops.band.tables.schedule import (
    FULL_START,
    NARROW,
    NUM_FULL,
    PARTIAL_END,
    PARTIAL_START,
    ROW_END,
    ROW_START,
    SLOT,
    TileSchedule,
    TileSpec,
)
from tests.helpers.kernels.masks_for_tests import rasters

CPU = torch.device("cpu")


def raster(schedule: TileSchedule, num_rows: int, num_cols: int, narrow_n: int = 0) -> np.ndarray:
    """The number of visits of each pair, int (groups, rows, columns), where no more than `narrow_n` columns
    are of the narrow blocks."""
    counts = np.zeros((len(schedule.work_tiles), num_rows, num_cols), dtype=int)
    ranges = schedule.block_ranges.numpy()
    shapes = schedule.partial_masks.numpy()
    for group, tiles in enumerate(schedule.work_tiles.numpy()):
        for tile in tiles:
            rows = slice(tile[ROW_START], tile[ROW_END])
            height = tile[ROW_END] - tile[ROW_START]
            assert height <= schedule.tile_m
            for column, count in ranges[tile[FULL_START] : tile[PARTIAL_START]]:
                assert count > 0 and column + count * schedule.tile_n <= num_cols
                counts[group, rows, column : column + count * schedule.tile_n] += 1
            assert ranges[tile[FULL_START] : tile[PARTIAL_START], 1].sum() == tile[NUM_FULL]
            for index in range(tile[PARTIAL_START], tile[PARTIAL_END]):
                column, shape = ranges[index]
                is_narrow = tile[NARROW] > 0 and index == tile[PARTIAL_START]
                assert not is_narrow or tile[NARROW] == shape + 1
                for row, packed in enumerate(shapes[shape, :height], tile[ROW_START]):
                    first = packed & 0xFFFF
                    behind = packed >> 16
                    assert first < behind <= schedule.tile_n or first == behind == 0
                    counts[
                        group, row, column + first : column + (min(behind, narrow_n) if is_narrow else behind)
                    ] += 1
    return counts


def check_narrow(schedule: TileSchedule, narrow_n: int) -> None:
    """A narrow block is found where there is one beside others, and its mask shows none of the columns that
    are left out."""
    ranges = schedule.block_ranges.numpy()
    ends = schedule.partial_masks.numpy() >> 16
    for tile in schedule.work_tiles.numpy().reshape(-1, 8):
        shapes = ranges[tile[PARTIAL_START] : tile[PARTIAL_END], 1]
        assert tile[NARROW] in (0, *shapes[:1] + 1)
        some = any((ends[shape] <= narrow_n).all() for shape in shapes) and len(shapes) + tile[NUM_FULL] > 1
        assert (tile[NARROW] > 0) == (narrow_n > 0 and some)
        assert tile[NARROW] == 0 or (ends[tile[NARROW] - 1] <= narrow_n).all()


def check(mask: Mask, tile: int, step: int, most: int | None = None) -> None:
    right = rasters(mask).astype(int)
    limits = {} if most is None else {"max_fraction": 0.0, "min_blocks": most}
    wanted = [
        TileSpec(tile, step, transposed, in_order=in_order, narrow_n=narrow_n, **limits)
        for transposed in (False, True)
        for in_order, narrow_n in ((False, 0), (True, 0), (False, step // 4))
    ]
    for entry, schedule in zip(wanted, make_schedules(mask, wanted, CPU), strict=True):
        num_rows, num_cols = (
            (mask.seqlen_k, mask.seqlen_q) if entry.transposed else (mask.seqlen_q, mask.seqlen_k)
        )
        drawn = raster(schedule, num_rows, num_cols, entry.narrow_n)
        np.testing.assert_array_equal(drawn, right.transpose(0, 2, 1) if entry.transposed else right)
        check_narrow(schedule, entry.narrow_n)
        if entry.in_order:
            check_waits(schedule, num_cols + step)
        else:
            check_order(schedule, num_rows, most)


def check_waits(schedule: TileSchedule, num_cols: int) -> None:
    """At each of its columns, a tile waits for the one that was there last."""
    waits, waits_of = (table.numpy() for table in (schedule.waits, schedule.wait_ranges))
    ranges = schedule.block_ranges.numpy()
    for group, tiles in enumerate(schedule.work_tiles.numpy()):
        latest = np.full(num_cols, -1)
        for number, tile in enumerate(tiles):
            touched = np.zeros(num_cols, dtype=bool)
            other = np.full(num_cols, -2)
            right = num_cols
            for index in range(tile[FULL_START], tile[PARTIAL_END]):
                column = ranges[index, 0]
                count = ranges[index, 1] if index < tile[PARTIAL_START] else 1
                touched[column : column + count * schedule.tile_n] = True
            for column, which in waits[slice(*waits_of[group, number])]:
                assert column < right
                other[column:right] = which
                right = column
            assert (other[touched] == latest[touched]).all()
            latest[touched] = number


def check_order(schedule: TileSchedule, num_rows: int, most: int | None) -> None:
    """Longest first; every row in one line; slots of a line successive."""
    for tiles, splits in zip(schedule.work_tiles.numpy(), schedule.splits.numpy(), strict=True):
        length = tiles[:, NUM_FULL] + tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START]
        tiles, length = (
            tiles[tiles[:, ROW_START] < tiles[:, ROW_END]],
            length[tiles[:, ROW_START] < tiles[:, ROW_END]],
        )
        assert (np.diff(length) <= 0).all() and (most is None or (length <= most).all())
        owned = np.zeros(num_rows, dtype=int)
        for row0, row1 in np.unique(tiles[:, [ROW_START, ROW_END]], axis=0):
            owned[row0:row1] += 1
        assert (owned == 1).all()
        slots = []
        for row0, row1, first, count in splits:
            mine = tiles[(tiles[:, SLOT] >= first) & (tiles[:, SLOT] < first + count)]
            assert (mine[:, [ROW_START, ROW_END]] == (row0, row1)).all() and sorted(mine[:, SLOT]) == list(
                range(first, first + count)
            )
            slots += range(first, first + count)
        assert slots == list(range(len(slots))) and len(slots) <= schedule.num_slots
        assert (tiles[:, SLOT] >= 0).sum() == len(slots)
