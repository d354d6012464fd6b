"""Predicted times of the ways to band attention's gradients: the amounts of work that they are made of."""

from typing import Any

import numpy as np
import pytest
import torch

from longca.masks import build_mask
from longca.ops.band.config import BandKernel, choose_tiles
from longca.ops.band.plan import plan_band_attention
from longca.ops.band.tables import backward_time
from longca.ops.band.tables.backward_time import (
    DISTANCE,
    FINISH,
    PROGRAMS,
    START,
    makespan,
    one_pass_blocks,
    two_kernels_amounts,
)
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START
from longca.ops.band.tables.tile_rows import TileRows
from tests.helpers.ops.backward_tables import rows_of

CPU = torch.device("cpu")


def test_one_pass_waits_for_dq_and_for_the_heads_before() -> None:
    one = rows_of(build_mask("full", seqlen=1024).crop((0, 1024), (0, 128)))
    two = rows_of(build_mask("full", seqlen=1024).crop((0, 1024), (0, 256)))
    alone = START + 16 + FINISH
    assert waited(one, 1, 1, 1, (1, 1)) == alone
    assert waited(two, 1, 1, 1, (1, 1)) == alone + DISTANCE
    assert waited(one, 1, 8, 1, (1, 1)) == alone + 7 * FINISH
    assert waited(one, 1, 8, 1, (1, 2)) == alone + 7 * FINISH
    assert waited(one, 1, 2, 4, (1, 1)) == alone + 3 * 16 + FINISH
    causal = rows_of(build_mask("causal", seqlen=1024))
    assert waited(causal, 1, 1, 1, (1, 1)) == alone, "its work tiles stay apart"


def waited(*call: Any) -> float:
    return one_pass_blocks(*call)[0]


def missed(tiles: TileRows, items: int, heads: int = 64) -> float:
    """The share of the blocks of so many heads that is missed with so many of them at once."""
    return one_pass_blocks(tiles, heads, 1, 1, (items, 1))[1] * PROGRAMS / tiles.blocks.sum() / heads


def test_rows_are_missed_where_many_others_were_used_since() -> None:
    short = rows_of(build_mask("causal", seqlen=1024))
    assert missed(short, 16) == 0, "all rows of all heads at work fit"
    full, causal = (rows_of(build_mask(name, seqlen=8192)) for name in ("full", "causal"))
    assert missed(full, 1) == missed(causal, 1) == 0
    assert missed(full, 8) < 0.1, "work tiles follow each other closely"
    assert 0.15 < missed(causal, 8) < 0.4 and missed(causal, 16) > 0.6


def test_rows_that_the_tile_before_lacks_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first keys of a global window are seen by rows that no window near them has."""
    mask = build_mask("global_sliding_window", seqlen=8192)
    share = missed(rows_of(mask), 8)
    monkeypatch.setattr(TileRows, "returned_blocks", 0)
    assert missed(rows_of(mask), 8) < share - 0.005


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "shared_question"])
def test_omitted_waves_hardly_change_the_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = "prolong64k" if name == "shared_question" else None
    tiles = rows_of(build_mask(name, seqlen=5120, corpus=corpus))
    few = {at_once: one_pass_blocks(tiles, 8, 8, 1, at_once) for at_once in ((8, 2), (4, 1), (2, 2), (1, 1))}
    pairs = makespan(tiles.blocks, 64, 8, 64)
    monkeypatch.setattr(backward_time, "WAVES", 1 << 20)
    for at_once, some in few.items():
        every = one_pass_blocks(tiles, 8, 8, 1, at_once)
        assert some[0] == pytest.approx(every[0], rel=0.03)
        assert some[1] == pytest.approx(every[1], rel=0.25, abs=0.02 * every[0])
    assert pairs == pytest.approx(makespan(tiles.blocks, 64, 8, 64), rel=0.01)


def test_items_take_whole_waves_and_long_ones_are_split() -> None:
    assert makespan(np.full(PROGRAMS, 10), 2, 1, 100) == 2 * (10 + START)
    assert makespan(np.full(PROGRAMS + 1, 10), 1, 1, 100) == 2 * (10 + START)
    assert makespan(np.array([40]), 1, 1, 10) == 10 + START
    assert makespan(np.zeros(0, dtype=int), 8, 8, 10) == 0


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
