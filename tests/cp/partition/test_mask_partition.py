"""Mask partitions: the rows of each rank that see keys of another."""

import numpy as np
import pytest

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.planner import partition_mask
from longca.masks import build_mask


@pytest.mark.parametrize("placement", ["contiguous", "zigzag", "heap-64"])
@pytest.mark.parametrize(
    "mask", ["full", "causal", "causal_document", "full_document", "sliding_window", "causal_sliding_window"]
)
def test_meetings_are_the_rows_that_see_keys_of_a_rank(mask: str, placement: str):
    """The masks have one band at each row."""
    built = build_mask(mask, seqlen=777, **({"window": 40} if "window" in mask else {}))
    cut, seen = (
        partition_mask(built, placed := make_sharding(placement, built, 4)),
        built.dense().reshape(777, 777),
    )
    positions = [placed.positions(rank) for rank in range(4)]
    rows = [[int(seen[np.ix_(mine, theirs)].any(axis=1).sum()) for theirs in positions] for mine in positions]
    np.testing.assert_array_equal(cut.band_rows, rows)
