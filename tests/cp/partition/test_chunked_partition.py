"""Partitions of one mask on several shardings, counted in one pass."""

import numpy as np
import pytest

from longca.cp.partition.chunked_partition import partition_jointly
from longca.cp.partition.sharding import ChunkedSharding, make_sharding
from longca.cp.schedule.planner import partition_mask
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands


@pytest.mark.parametrize("world", (2, 3, 16))
def test_partitions_counted_in_one_pass_are_those_counted_alone(world: int):
    for mask in (
        build_mask("causal_document", seqlen=3000, documents=np.array([1, 700, 299, 1990, 10])),
        build_mask("shared_question", seqlen=3000, documents=np.array([1400, 1600])),
        build_mask("sliding_window", seqlen=1003, window=100),
        Mask(100, 100, (as_bands([]),)),
        Mask(100, 100, (as_bands([(3, 9, 5, 60, -INF, 2)]), as_bands([(0, 100, 0, 100, -7, INF)]))),
    ):
        shardings = [
            make_sharding(name, mask, world) for name in ("contiguous", "zigzag", "heap-16", "level-8")
        ]
        assert all(isinstance(sharding, ChunkedSharding) for sharding in shardings)
        for joint, sharding in zip(partition_jointly(mask, shardings), shardings, strict=True):
            alone = partition_mask(mask, sharding)
            for name in ("areas", "band_rows", "num_needed", "needed_hulls"):
                np.testing.assert_array_equal(getattr(joint, name), getattr(alone, name), err_msg=name)
