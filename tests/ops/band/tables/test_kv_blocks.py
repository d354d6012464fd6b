"""KV blocks of row tiles, from block masks of any size in any memory."""

import numpy as np
import pytest

from longca.masks import Mask
from longca.masks.grid import BlockGrid
from tests.helpers.ops.schedule_raster import check


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_no_blocks(lengths: tuple[int, int]) -> None:
    """Blocks of 4 with all of a sequence cropped away: none of no tokens, or of queries without keys."""
    blocks = Mask(8, 8, grid=BlockGrid(np.ones((2, 2, 2), dtype=bool), *[np.tile([0, 4, 8], (2, 1))] * 2))
    check(blocks.crop((0, lengths[0]), (0, lengths[1])), 16, 8)


@pytest.mark.filterwarnings("error")
def test_blocks_in_any_memory() -> None:
    """Backwards, or read only."""
    visible = np.array([[[1, 0, 1], [0, 0, 1]]], dtype=bool)
    bounds = np.array([[0, 3, 8, 9]])
    for entry in (visible[:, ::-1, ::-1], np.broadcast_to(visible, (2, 2, 3))):
        q_bounds, k_bounds = (
            np.broadcast_to(cut, (len(entry), cut.shape[1]))
            for cut in (bounds[:, [0, 1, 3]].astype(np.int32), bounds)
        )
        check(Mask(9, 9, grid=BlockGrid(entry, q_bounds, k_bounds)), 16, 8)
