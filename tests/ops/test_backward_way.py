"""The way to band attention's gradients, chosen by predicted times."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from longca.masks import Mask, build_mask
from longca.masks.band import transpose
from longca.ops.band.config import BandKernel, choose_tiles
from longca.ops.band.plan import make_schedules, plan_band_attention
from longca.ops.band.tables import backward_time
from longca.ops.band.tables.backward_rule import AddOrder, preferred_dq_order
from longca.ops.band.tables.backward_time import (
    DISTANCE,
    FINISH,
    PROGRAMS,
    START,
    makespan,
    one_pass_blocks,
    two_kernels_amounts,
)
from longca.ops.band.tables.backward_way import (
    LONGEST,
    LONGEST_PART,
    BackwardWay,
    chosen_way,
    has_predicted_times,
    ways_of_one_pass,
)
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START, ROW_START, TileSpec
from longca.ops.band.tables.tile_rows import TileRows
from tests.helpers.kernels.masks_for_tests import band_masks
from tests.helpers.masks.strategies import quick

CPU = torch.device("cpu")
SIZE = 16


def rows_of(mask: Mask) -> TileRows:
    return TileRows.of(mask.groups[0], mask.seqlen_q, mask.seqlen_k)


@quick
@given(band_masks(max_groups=1))
def test_rows_are_those_that_see_a_tile(mask: Mask) -> None:
    visible = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    sides = ((mask.groups[0], visible), (transpose(mask.groups[0]), visible.T))
    for bands, seen in sides:
        num_rows, num_keys = seen.shape
        tiles = [seen[:, start : start + SIZE] for start in range(0, num_keys, SIZE)][::-1]
        rows = TileRows.of(bands, num_rows, num_keys, SIZE)
        np.testing.assert_array_equal(rows.blocks_of(1), [tile.any(1).sum() for tile in tiles])
        assert (
            rows.num_partial(1) <= sum((tile.any(1) & ~tile.all(1)).sum() for tile in tiles) or len(bands) > 1
        )


@pytest.mark.parametrize(
    "name",
    ["full", "causal", "causal_document", "shared_question", "global_sliding_window", "causal_blockwise"],
)
def test_blocks_are_those_of_the_tables(name: str) -> None:
    corpus = None if name in ("full", "causal", "global_sliding_window") else "prolong64k"
    mask = build_mask(name, seqlen=3500, corpus=corpus)
    (schedule,) = make_schedules(mask, [TileSpec(128, 64, True, in_order=AddOrder.FROM_FIRST)], CPU)
    tiles = schedule.work_tiles[0].numpy()
    tiles = tiles[np.argsort(-tiles[:, ROW_START], kind="stable")]
    partial = tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START]
    rows = rows_of(mask)
    np.testing.assert_array_equal(rows.blocks, tiles[:, NUM_FULL] + partial)
    assert rows.num_partial(64) == pytest.approx(partial.sum(), rel=0.6)


@pytest.mark.parametrize(
    ("name", "documents", "stores"),
    [
        ("full", [], True),
        ("causal", [], True),
        ("full_document", [1000, 1048], False),
        ("full_document", [1024, 1024], True),
    ],
)
def test_first_addends_are_stored_as_in_the_plan(name: str, documents: list[int], stores: bool) -> None:
    params: dict[str, Any] = {"documents": documents} if documents else {}
    mask = build_mask(name, seqlen=2048, **params)
    spec = TileSpec(128, 64, True, in_order=AddOrder.FROM_FIRST, stores_first=True)
    assert rows_of(mask).stores_first is make_schedules(mask, [spec], CPU)[0].stores_first is stores


def test_one_pass_waits_for_dq_and_for_the_heads_before() -> None:
    one = rows_of(build_mask("full", seqlen=1024).crop((0, 1024), (0, 128)))
    two = rows_of(build_mask("full", seqlen=1024).crop((0, 1024), (0, 256)))
    alone = START + 16 + FINISH
    assert one_pass_blocks(one, 1, 1, 1, (1, 1)) == alone
    assert one_pass_blocks(two, 1, 1, 1, (1, 1)) == alone + DISTANCE
    assert one_pass_blocks(one, 1, 8, 1, (1, 1)) == alone + 7 * FINISH
    assert one_pass_blocks(one, 1, 8, 1, (1, 2)) == alone + 7 * FINISH
    assert one_pass_blocks(one, 1, 2, 4, (1, 1)) == alone + 3 * 16 + FINISH
    causal = rows_of(build_mask("causal", seqlen=1024))
    assert one_pass_blocks(causal, 1, 1, 1, (1, 1)) == alone, "its work tiles stay apart"


def test_a_tile_passes_after_those_that_begin_on_its_way() -> None:
    """The work tile at the border of two documents adds to the second one's rows after its own tiles."""
    mask = build_mask("full_document", seqlen=1024, documents=[448, 576])
    predecessors = rows_of(mask).predecessors
    assert predecessors[:4] == [[], [(0, 0)], [(1, 0)], [(2, 0)]]
    assert predecessors[4] == [(3, -7.0)], "tile 4 has 7 blocks of the first document before"
    assert predecessors[5] == [(4, 0)]


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "shared_question"])
def test_omitted_waves_hardly_change_the_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = "prolong64k" if name == "shared_question" else None
    tiles = rows_of(build_mask(name, seqlen=5120, corpus=corpus))
    few = {at_once: one_pass_blocks(tiles, 8, 8, 1, at_once) for at_once in ((4, 1), (2, 2), (1, 1))}
    pairs = makespan(tiles.blocks, 64, 8, 64)
    monkeypatch.setattr(backward_time, "WAVES", 1 << 20)
    assert few == pytest.approx({key: one_pass_blocks(tiles, 8, 8, 1, key) for key in few}, rel=0.03)
    assert pairs == pytest.approx(makespan(tiles.blocks, 64, 8, 64), rel=0.01)


def test_items_take_whole_waves_and_long_ones_are_split() -> None:
    assert makespan(np.full(PROGRAMS, 10), 2, 1, 100) == 2 * (10 + START)
    assert makespan(np.full(PROGRAMS + 1, 10), 1, 1, 100) == 2 * (10 + START)
    assert makespan(np.array([40]), 1, 1, 10) == 10 + START
    assert makespan(np.zeros(0, dtype=int), 8, 8, 10) == 0


@pytest.mark.parametrize(
    ("heads", "rounds", "ways"),
    [
        (8, 8, [(4, 1), (2, 1), (1, 1)]),
        (2, 8, [(2, 1), (1, 1), (2, 2)]),
        (3, 1, [(3, 1), (1, 1)]),
        (1, 8, [(1, 1), (1, 2)]),
    ],
)
def test_heads_at_once_divide_the_heads(heads: int, rounds: int, ways: list[tuple[int, int]]) -> None:
    assert ways_of_one_pass(heads, rounds) == ways


def test_masks_unlike_the_measured_ones_go_by_the_rule() -> None:
    full = build_mask("full", seqlen=LONGEST)
    causal = build_mask("causal", seqlen=4096)
    others = [
        build_mask("full", seqlen=LONGEST + 1),
        build_mask("full", seqlen=1000),
        full.crop((0, LONGEST), (0, LONGEST // 2)),
        full.crop((0, LONGEST_PART), (0, 256)),
        build_mask("causal_sliding_window", seqlen=4096, window=256),
        build_mask("block_sparse_uniform", seqlen=4096, density=0.5),
        Mask(4096, 4096, (*causal.groups, *causal.groups)),
        Mask(0, 0, (np.empty((0, 6), dtype=np.int64),)),
    ]
    assert has_predicted_times(full, 2) and not has_predicted_times(full, 3)
    assert has_predicted_times(full.crop((0, LONGEST_PART), (0, 8192)), 3)
    assert not any(has_predicted_times(mask, 2) for mask in others)
    for mask in others:
        assert chosen_way(mask, 16, 2) == BackwardWay(preferred_dq_order(mask, 2))


def test_two_kernels_compute_what_their_tables_hold() -> None:
    mask = build_mask("causal_document", seqlen=4096, documents=[1500, 2596])
    plan = plan_band_attention(
        mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=CPU, tiles=choose_tiles(128, (9, 0))
    )
    _, dkdv, dq, *_ = two_kernels_amounts(mask.groups[0], rows_of(mask), 64, 8)
    for kernel, blocks, copies in ((BandKernel.DKDV, dkdv, 8), (BandKernel.DQ, dq, 8)):
        tiles = plan.kernels[kernel][0].work_tiles[0].numpy()
        lengths = tiles[:, NUM_FULL] + tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START]
        least = (lengths.sum() + START * len(lengths)) * copies / PROGRAMS
        assert least <= blocks + 1e-9 < 1.15 * least, "with a tail wave"


def test_the_plan_starts_so_many_heads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "longca.ops.band.plan.choose_tiles", lambda head_dim, _, **how: choose_tiles(head_dim, (9, 0), **how)
    )
    for seqlen, heads in ((2048, 4), (8192, 2)):
        mask = build_mask("full", seqlen=seqlen)
        way = chosen_way(mask, 64, 8)
        assert way == BackwardWay(AddOrder.FROM_FIRST, heads, 1)
        plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=CPU)
        config = plan.kernels[BandKernel.DKDV][1]
        assert BandKernel.DQ not in plan.kernels and config.in_order is AddOrder.FROM_FIRST
        assert (config.kv_heads_per_section, config.rounds_per_section) == (heads, 1)


@pytest.mark.parametrize(("seqlen", "most_ms"), [(8192, 5), (32768, 2)])
def test_a_choice_takes_little_time(seqlen: int, most_ms: float) -> None:
    """1 and 0.2 ms on an idle core."""
    times = []
    for name in ("causal", "global_sliding_window") * 5:
        mask = build_mask(name, seqlen=seqlen)
        start = time.thread_time()
        chosen_way(mask, 64, 8)
        times.append(time.thread_time() - start)
    assert min(times) * 1e3 < most_ms
