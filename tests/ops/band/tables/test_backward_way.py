"""The way to band attention's gradients, chosen by predicted times."""

import math
import statistics
import time

import numpy as np
import pytest
import torch

from longca.masks import Mask, band, build_mask
from longca.ops.band.config import BandKernel, choose_tiles
from longca.ops.band.plan import plan_band_attention
from longca.ops.band.tables.backward_rule import AddOrder, preferred_dq_order
from longca.ops.band.tables.backward_time import one_pass_us
from longca.ops.band.tables.backward_way import (
    LONGEST,
    LONGEST_ODD,
    BackwardWay,
    backward_us,
    chosen_way,
    has_predicted_times,
    predicted_us,
    ways_of_one_pass,
)
from longca.ops.band.tables.heads import heads_per_item_of
from longca.ops.band.tables.tile_rows import TILE, TileRows
from tests.helpers.ops.backward_tables import mask_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rows", "heads", "heads_per_item", "ways"),
    [
        (8192, (64, 8), 1, [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]),
        (8192, (64, 8), 4, [(1, 1), (2, 1), (4, 1)]),
        (32768, (64, 8), 1, [(1, 1), (2, 1), (4, 1)]),
        (2048, (64, 64), 1, [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1)]),
        (2048, (16, 2), 1, [(1, 1), (2, 1), (2, 2), (2, 4), (2, 8)]),
        (2048, (3, 3), 1, [(1, 1), (3, 1)]),
        (2048, (8, 1), 1, [(1, 1), (1, 2), (1, 4), (1, 8)]),
    ],
)
def test_items_at_once_divide_the_heads(
    rows: int, heads: tuple[int, int], heads_per_item: int, ways: list[tuple[int, int]]
) -> None:
    assert ways_of_one_pass(rows, *heads, heads_per_item) == ways


def test_masks_unlike_the_measured_ones_go_by_the_rule() -> None:
    full = build_mask("full", seqlen=LONGEST)
    causal = build_mask("causal", seqlen=4096)
    others = [
        build_mask("full", seqlen=LONGEST + 1),
        build_mask("full", seqlen=1000),
        full.crop((0, LONGEST), (0, 256)),
        build_mask("causal_sliding_window", seqlen=4096, window=256),
        build_mask("block_sparse_uniform", seqlen=4096, density=0.5),
        Mask(4096, 4096, (*causal.groups, *causal.groups)),
        Mask(0, 0, (np.empty((0, 6), dtype=np.int64),)),
    ]
    assert has_predicted_times(full, 2) and not has_predicted_times(full, 3)
    assert has_predicted_times(full.crop((0, LONGEST_ODD), (0, 8192)), 3)
    assert has_predicted_times(full.crop((0, LONGEST), (0, LONGEST // 2)), 2)
    assert not any(has_predicted_times(mask, 2) for mask in others)
    for mask in others:
        assert chosen_way(mask, 16, 2) == BackwardWay(preferred_dq_order(mask, 2))


def test_long_parts_keep_the_last_row_where_the_rule_takes_it() -> None:
    """Parts of `causal`, all of whose keys the last query sees: the longest ones, and others whose keys are
    out of order."""
    causal = build_mask("causal", seqlen=49152)
    longest, long = causal.crop((32768, 49152), (0, 49152)), causal.crop((16384, 32768), (0, 32768))
    own, earlier = long.crop((0, 16384), (16384, 32768)), long.crop((0, 16384), (0, 16384))
    unsorted = (*own.groups, *(band.shift(group, 0, 16384) for group in earlier.groups))
    assert chosen_way(longest, 64, 8).order is AddOrder.FROM_LAST
    assert chosen_way(long, 64, 8).order is AddOrder.FROM_FIRST
    assert chosen_way(Mask(16384, 32768, (np.concatenate(unsorted),)), 64, 8).order is AddOrder.FROM_LAST


def test_keys_out_of_order_take_two_kernels() -> None:
    """As a rank has them that computes with its own keys and earlier ones: its last keys begin first."""
    causal = build_mask("causal", seqlen=8192)
    own, earlier = causal.crop((4096, 8192), (4096, 8192)), causal.crop((4096, 8192), (0, 4096))
    bands = (*own.groups, *(band.shift(group, 0, 4096) for group in earlier.groups))
    unsorted = Mask(4096, 8192, (np.concatenate(bands),))
    assert list(predicted_us(unsorted, 64, 8)) == [BackwardWay(None)]
    assert chosen_way(unsorted, 64, 8) == BackwardWay(None)
    assert chosen_way(causal.crop((4096, 8192), (0, 8192)), 64, 8).order is AddOrder.FROM_FIRST


def test_times_of_all_gradients() -> None:
    full = build_mask("full", seqlen=4096)
    assert backward_us(full, 64, 8) == min(predicted_us(full, 64, 8).values())
    thin = build_mask("causal_sliding_window", seqlen=4096, window=64)
    assert 0 < (backward_us(thin, 64, 8) or 0) < (backward_us(full, 64, 8) or 0)
    assert backward_us(full, 64, 8, 64) is None
    assert backward_us(build_mask("block_sparse_uniform", seqlen=4096, density=0.5), 64, 8) is None
    assert backward_us(Mask(4096, 4096, (*full.groups, *full.groups)), 64, 8) is None


def test_the_plan_starts_so_many_heads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "longca.ops.band.plan.choose_tiles", lambda head_dim, _, **how: choose_tiles(head_dim, (9, 0), **how)
    )
    for seqlen, heads in ((2048, 8), (8192, 8)):
        mask = build_mask("full", seqlen=seqlen)
        way = chosen_way(mask, 64, 8)
        assert way == BackwardWay(AddOrder.FROM_FIRST, heads, 1)
        plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=CPU)
        config = plan.kernels[BandKernel.DKDV][1]
        assert BandKernel.DQ not in plan.kernels and config.in_order is AddOrder.FROM_FIRST
        assert (config.kv_heads_per_section, config.rounds_per_section) == (heads, 1)


@pytest.mark.parametrize("heads", [(64, 8), (16, 2), (64, 64)])
@pytest.mark.parametrize("seqlen", [1024, 4096, 16384])
def test_ways_that_are_left_out_hardly_cost(seqlen: int, heads: tuple[int, int]) -> None:
    """More or fewer items at once than a number that is slower already are not looked at."""
    lost = []
    for name in ("full", "causal", "full_document", "global_sliding_window", "prefix_lm", "sliding_window"):
        mask = mask_of(name, seqlen)
        if not has_predicted_times(mask, heads[1]):
            continue
        times = predicted_us(mask, *heads)
        tiles = TileRows.of(mask.groups[0], seqlen, seqlen)
        per_item = math.gcd(
            heads_per_item_of(mask, AddOrder.FROM_FIRST, heads[0], TILE), heads[0] // heads[1]
        )
        every = [times[BackwardWay(None)]]
        for at_once in ways_of_one_pass(seqlen, *heads, per_item):
            time = one_pass_us(tiles, *heads, per_item, at_once)
            assert times.get(BackwardWay(AddOrder.FROM_FIRST, *at_once), time) == time
            every.append(time)
        lost.append(min(times.values()) / min(every) - 1)
    assert statistics.mean(lost) < 0.003 and max(lost) < 0.03


@pytest.mark.parametrize(("seqlen", "most_ms"), [(8192, 5), (32768, 8), (65537, 2)])
def test_a_choice_takes_little_time(seqlen: int, most_ms: float) -> None:
    """1, 2 and 0.2 ms on an idle core: the longest ones go by the rule."""
    times = []
    for name in ("causal", "global_sliding_window") * 5:
        mask = build_mask(name, seqlen=seqlen)
        start = time.thread_time()
        chosen_way(mask, 64, 8)
        times.append(time.thread_time() - start)
    assert min(times) * 1e3 < most_ms
