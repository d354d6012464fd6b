"""The masks of partial blocks: equal ones are shared."""

import numpy as np
import torch

from longca.masks import build_mask
from longca.ops.band.plan import make_schedules
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START, TileSpec

CPU = torch.device("cpu")


def test_causal_has_one_shape_and_steps_that_fit() -> None:
    (schedule,) = make_schedules(build_mask("causal", seqlen=256), [TileSpec(32, 32, transposed=False)], CPU)
    assert len(schedule.partial_masks) == 1
    tiles = schedule.work_tiles[0].numpy()
    np.testing.assert_array_equal(tiles[:, NUM_FULL], np.arange(8)[::-1])
    assert (tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START] == 1).all()
