"""FlashMask's tile lists against the raster."""

import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.lowering.flashmask import flashmask_columns
from longca.masks import Mask
from longca.ops.flashmask.tiles import TileLists, col_lists, row_lists
from tests.helpers.kernels.cases import BEYOND_FLASHMASK, hand_made_cases, pattern_mask

STATIC = [pattern_mask(name, 2) for name in Registry("mask").names() if not name.startswith(BEYOND_FLASHMASK)]
HAND_MADE = [case.mask for case in hand_made_cases()]


@pytest.mark.parametrize("tiles", [(16, 8), (8, 32), (128, 64)], ids=str)
@pytest.mark.parametrize("mask", STATIC + HAND_MADE, ids=str)
def test_tiles_hold_what_the_raster_says(mask: Mask, tiles: tuple[int, int]) -> None:
    """Listed tiles hold every visible pair; no full tile hides one; a skipped or listed tile is not listed
    twice."""
    form = flashmask_columns(mask)
    columns = torch.from_numpy(form.columns).transpose(1, 2).contiguous()
    num_rows = -(-mask.seqlen_q // tiles[0])
    num_cols = -(-mask.seqlen_k // tiles[1])
    dense = np.zeros((mask.num_groups, num_rows * tiles[0], num_cols * tiles[1]), dtype=bool)
    dense[:, : mask.seqlen_q, : mask.seqlen_k] = mask.dense()
    rows = row_lists(columns, form.causal, mask.seqlen_q, *tiles)
    full, part = _raster(rows, mask.num_groups, num_rows, num_cols)
    cols = col_lists(columns, form.causal, mask.seqlen_q, *tiles)
    for by_row, by_col in zip((full, part), _raster(cols, mask.num_groups, num_cols, num_rows), strict=True):
        np.testing.assert_array_equal(by_row, by_col.transpose(0, 2, 1))
    blocks = dense.reshape(mask.num_groups, num_rows, tiles[0], num_cols, tiles[1])
    visible_rows = (np.arange(num_rows * tiles[0]) < mask.seqlen_q).reshape(num_rows, tiles[0])
    assert not (full & part).any()
    assert not (blocks.any((2, 4)) & ~(full | part)).any()
    assert not (full & ~(blocks | ~visible_rows[None, :, :, None, None]).all((2, 4))).any()


def test_tiles_off_the_diagonal_need_no_test() -> None:
    form = flashmask_columns(pattern_mask("causal", 1))
    rows = row_lists(
        torch.from_numpy(form.columns).transpose(1, 2).contiguous(), form.causal, 133, 16, 16
    )  # the last sticks out
    full, part = _raster(rows, 1, 9, 9)
    np.testing.assert_array_equal(full[0, :8], np.tri(8, 9, k=-1, dtype=bool))
    np.testing.assert_array_equal(part[0, :8], np.eye(8, 9, dtype=bool))
    assert part[0, 8].all() and not full[0, 8].any()


def _raster(lists: TileLists, num_groups: int, num_lines: int, num_across: int) -> list[np.ndarray]:
    """(full, part): how the lists mark tiles, bool (groups, lines, across)."""
    marks = []
    for offsets, tiles in ((lists.full_offsets, lists.full_tiles), (lists.part_offsets, lists.part_tiles)):
        mark = np.zeros((num_groups * num_lines, num_across), dtype=int)
        np.add.at(mark, (np.repeat(np.arange(len(mark)), np.diff(offsets.numpy())), tiles.numpy()), 1)
        assert mark.max(initial=0) <= 1
        marks.append(mark.astype(bool).reshape(num_groups, num_lines, num_across))
    return marks
