"""The rows of each work tile of keys: those that see it, as tables and plans have them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from longca.masks import Mask, build_mask
from longca.masks.band import transpose
from longca.ops.band.plan import make_schedules
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START, ROW_START, TileSpec
from longca.ops.band.tables.tile_rows import BLOCK, TILE, TileRows
from tests.helpers.kernels.masks_for_tests import band_masks
from tests.helpers.masks.strategies import quick
from tests.helpers.ops.backward_tables import rows_of

CPU = torch.device("cpu")
SIZE = 16


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


@quick
@given(band_masks(max_groups=1))
def test_shared_rows_are_those_of_neighbouring_tiles(mask: Mask) -> None:
    rows = TileRows.of(mask.groups[0], mask.seqlen_q, mask.seqlen_k)
    seen = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    tiles = [seen[:, start : start + TILE].any(1) for start in range(0, mask.seqlen_k, TILE)][::-1]
    for tile, shared in enumerate(rows.shared_rows):
        both = tiles[tile] & tiles[tile - 1] if tile else np.zeros(mask.seqlen_q, bool)
        assert (both.sum() > 0) == (len(shared) > 0)
        assert -(-both.sum() // BLOCK) <= sum(blocks for _, blocks in shared) <= both.sum()


def test_distances_between_tiles_at_the_same_row() -> None:
    causal = rows_of(build_mask("causal", seqlen=1024))
    # each begins two blocks of rows before the tile of later keys
    assert causal.shared_rows == [[], *([(-2, 2 * number)] for number in range(1, 8))]
    assert causal.returned_blocks == 0
    full = rows_of(build_mask("full", seqlen=1024))
    assert full.shared_rows == [[], *([(0, 16)] for _ in range(7))]
    documents = rows_of(build_mask("full_document", seqlen=1024, documents=[512, 512]))
    assert [len(shared) for shared in documents.shared_rows] == [0, 1, 1, 1, 0, 1, 1, 1]
    far = 1 << 40
    bands = [(0, 256, 0, 128), (256, 512, 128, 256), (0, 256, 256, 384)]
    apart = TileRows.of(np.array([(*rows, -far, far) for rows in bands]), 512, 384)
    assert apart.shared_rows == [[], [], []] and apart.returned_blocks == 4


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


def test_a_tile_passes_after_those_that_begin_on_its_way() -> None:
    """The work tile at the border of two documents adds to the second one's rows after its own tiles."""
    mask = build_mask("full_document", seqlen=1024, documents=[448, 576])
    predecessors = rows_of(mask).predecessors
    assert predecessors[:4] == [[], [(0, 0)], [(1, 0)], [(2, 0)]]
    assert predecessors[4] == [(3, -7.0)], "tile 4 has 7 blocks of the first document before"
    assert predecessors[5] == [(4, 0)]


@quick
@given(band_masks(max_groups=1))
def test_a_tile_stays_behind_those_that_have_its_first_rows(mask: Mask) -> None:
    """As a reader would look for them, segment by segment."""
    rows = TileRows.of(mask.groups[0], mask.seqlen_q, mask.seqlen_k, SIZE)
    segments = list(zip(rows.tile.tolist(), rows.first.tolist(), rows.end.tolist(), strict=True))
    begins = [first for _, first, _ in segments]
    expected: list[set[int]] = [set() for _ in range(rows.num_tiles)]
    for tile, first, _ in segments:
        at = [first]
        at += [row for row in set(begins) if begins.count(row) > 1]
        for row in at:
            passing = [here for here in segments if here[1] <= row < here[2]]
            before = [other for other, _, _ in passing if other < tile]
            if before and any(here == tile and (begin < row or row == first) for here, begin, _ in passing):
                expected[tile].add(before[-1])
    assert [{tile for tile, _ in behind} for behind in rows.predecessors] == expected
