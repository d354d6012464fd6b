"""The tables of band attention against the raster: every visible pair once, and no other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.kernels.contribution import UNIT_ROWS
from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.ops.band.config import HOPPER_GRADIENTS, HOPPER_KEYS, HOPPER_QUERIES, TUNED, Use, tiles_for
from longca.ops.band.plan import UNIT, make_lines, plan_band_attention
from longca.ops.band.tables.schedule import FIRST, LAST, LINE, MIDDLE, NUM_FULL, ROW0, ROW1, SLOT, Lines, Wanted
from tests.kernels.masks_for_tests import NOTHING_VISIBLE, PATTERNS, band_masks, complementary_masks, grid_masks, pattern_mask, rasters
from tests.masks.strategies import quick

SIZES = [(16, 8), (8, 32), (64, 64)]
CPU = torch.device("cpu")


def raster(lines: Lines, num_rows: int, num_cols: int) -> np.ndarray:
    """How often each pair is visited, int (groups, rows, columns)."""
    counts = np.zeros((len(lines.pieces), num_rows, num_cols), dtype=int)
    runs, shapes = lines.runs.numpy(), lines.shapes.numpy()
    for group, pieces in enumerate(lines.pieces.numpy()):
        for piece in pieces:
            rows = slice(piece[ROW0], piece[ROW1])
            height = piece[ROW1] - piece[ROW0]
            assert height <= lines.tile
            for column, count in runs[piece[FIRST]:piece[MIDDLE]]:
                assert count > 0 and column + count * lines.step <= num_cols
                counts[group, rows, column:column + count * lines.step] += 1
            assert runs[piece[FIRST]:piece[MIDDLE], 1].sum() == piece[NUM_FULL]
            for column, shape in runs[piece[MIDDLE]:piece[LAST]]:
                for row, packed in enumerate(shapes[shape, :height], piece[ROW0]):
                    first, behind = packed & 0xFFFF, packed >> 16
                    assert first < behind <= lines.step or first == behind == 0
                    counts[group, row, column + first:column + behind] += 1
    return counts


def check(mask: Mask, tile: int, step: int, most: int | None = None) -> None:
    right = rasters(mask).astype(int)
    limits = {} if most is None else {"longest": 0.0, "least": most}
    wanted = [Wanted(tile, step, transposed, in_order=in_order, **limits) for transposed in (False, True) for in_order in (False, True)]
    for one, lines in zip(wanted, make_lines(mask, wanted, CPU), strict=True):
        num_rows, num_cols = (mask.seqlen_k, mask.seqlen_q) if one.transposed else (mask.seqlen_q, mask.seqlen_k)
        np.testing.assert_array_equal(raster(lines, num_rows, num_cols), right.transpose(0, 2, 1) if one.transposed else right)
        if one.in_order:
            check_turns(lines, num_cols + step)
        else:
            check_order(lines, num_rows, most)


def check_turns(lines: Lines, num_cols: int) -> None:
    """At each of its columns, a piece waits for the one that was there last."""
    waits, waits_of = (table.numpy() for table in (lines.waits, lines.waits_of))
    runs = lines.runs.numpy()
    for group, pieces in enumerate(lines.pieces.numpy()):
        latest = np.full(num_cols, -1)
        for number, piece in enumerate(pieces):
            touched, other, right = np.zeros(num_cols, dtype=bool), np.full(num_cols, -2), num_cols
            for run in range(piece[FIRST], piece[LAST]):
                column, count = runs[run, 0], runs[run, 1] if run < piece[MIDDLE] else 1
                touched[column:column + count * lines.step] = True
            for column, which in waits[slice(*waits_of[group, number])]:
                assert column < right
                other[column:right], right = which, column
            assert (other[touched] == latest[touched]).all()
            latest[touched] = number


def check_order(lines: Lines, num_rows: int, most: int | None) -> None:
    """Longest first; every row in one line; slots of a line successive."""
    for pieces, splits in zip(lines.pieces.numpy(), lines.splits.numpy(), strict=True):
        length = pieces[:, NUM_FULL] + pieces[:, LAST] - pieces[:, MIDDLE]
        pieces, length = pieces[pieces[:, ROW0] < pieces[:, ROW1]], length[pieces[:, ROW0] < pieces[:, ROW1]]
        assert (np.diff(length) <= 0).all() and (most is None or (length <= most).all())
        owned = np.zeros(num_rows, dtype=int)
        for row0, row1 in np.unique(pieces[:, [ROW0, ROW1]], axis=0):
            owned[row0:row1] += 1
        assert (owned == 1).all()
        slots = []
        for line, (row0, row1, first, count) in enumerate(splits):
            mine = pieces[(pieces[:, LINE] == line) & (pieces[:, SLOT] >= 0)]
            assert (mine[:, [ROW0, ROW1]] == (row0, row1)).all() and sorted(mine[:, SLOT]) == list(range(first, first + count))
            slots += range(first, first + count)
        assert slots == list(range(len(slots))) and len(slots) <= lines.num_slots
        assert (pieces[:, SLOT] >= 0).sum() == len(slots)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.sample(2)
def test_patterns(name: str, sizes: tuple[int, int]) -> None:
    check(pattern_mask(name), *sizes)
    check(pattern_mask(name), *sizes, most=2)


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=str)
def test_nothing_visible(mask: Mask) -> None:
    check(mask, 16, 8)


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_no_blocks(lengths: tuple[int, int]) -> None:
    """Of blocks of 4 with all of a sequence cropped away: none of no tokens, or of queries without keys."""
    blocks = Mask(8, 8, grid=BlockGrid(np.ones((2, 2, 2), dtype=bool), *[np.tile([0, 4, 8], (2, 1))] * 2))
    check(blocks.crop((0, lengths[0]), (0, lengths[1])), 16, 8)


@pytest.mark.filterwarnings("error")
def test_blocks_in_any_memory() -> None:
    """Backwards, or read only."""
    visible, bounds = np.array([[[1, 0, 1], [0, 0, 1]]], dtype=bool), np.array([[0, 3, 8, 9]])
    for one in (visible[:, ::-1, ::-1], np.broadcast_to(visible, (2, 2, 3))):
        q_bounds, k_bounds = (np.broadcast_to(cut, (len(one), cut.shape[1])) for cut in (bounds[:, [0, 1, 3]].astype(np.int32), bounds))
        check(Mask(9, 9, grid=BlockGrid(one, q_bounds, k_bounds)), 16, 8)


@quick
@given(band_masks(max_groups=2) | complementary_masks() | grid_masks(), st.sampled_from(SIZES), st.sampled_from([None, 1, 3]))
def test_random_masks(mask: Mask, sizes: tuple[int, int], most: int | None) -> None:
    check(mask, *sizes, most=most)


WANTED = st.builds(Wanted, st.sampled_from([8, 16, 64]), st.sampled_from([8, 64]), st.booleans(), st.sampled_from([0.0, 0.1, 1.0]),
                   st.sampled_from([1, 3]), st.booleans())


@quick
@given(band_masks(max_groups=2) | complementary_masks() | grid_masks(), st.lists(WANTED, min_size=2, max_size=3))
def test_lines_do_not_depend_on_those_made_beside_them(mask: Mask, wanted: list[Wanted]) -> None:
    for one, beside in zip(wanted, make_lines(mask, wanted, CPU), strict=True):
        alone, = make_lines(mask, [one], CPU)
        assert (alone.tile, alone.step, alone.num_slots) == (beside.tile, beside.step, beside.num_slots)
        for mine, other in zip(alone.tables, beside.tables, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_causal_has_one_shape_and_steps_that_fit() -> None:
    lines, = make_lines(build_mask("causal", seqlen=256), [Wanted(32, 32, transposed=False)], CPU)
    assert len(lines.shapes) == 1
    pieces = lines.pieces[0].numpy()
    np.testing.assert_array_equal(pieces[:, NUM_FULL], np.arange(8)[::-1])
    assert (pieces[:, LAST] - pieces[:, MIDDLE] == 1).all()


def test_what_makes_gradients_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels, or one for all gradients; blocks of less than its tiles keep the portable ones."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = torch.device("cuda")
    assert tiles_for(128, gpu)[Use.KEYS] == HOPPER_KEYS and tiles_for(128, gpu)[Use.QUERIES] == HOPPER_QUERIES
    assert tiles_for(128, gpu, block=128, block_rows=64)[Use.QUERIES] == TUNED[128][Use.QUERIES]
    for in_order in (False, True):
        tiles = tiles_for(128, gpu, at_once=True, in_order=in_order)
        assert tiles[Use.KEYS] == replace(HOPPER_GRADIENTS, in_order=in_order) and Use.QUERIES not in tiles
        short = tiles_for(128, gpu, block=64, at_once=True, in_order=in_order)
        assert [short[use] for use in (Use.KEYS, Use.QUERIES)] == [TUNED[128][use] for use in (Use.KEYS, Use.QUERIES)]
    assert tiles_for(64, gpu, at_once=True) == TUNED[64]


@pytest.mark.parametrize(("block", "heads", "own"), [(2, (64, 1), False), (4, (64, 1), False), (64, (8, 8), False), (128, (8, 8), True),
                                                     (16, (64, 8), True)], ids=str)
def test_dq_on_hopper_has_lines_of_128_rows(block: int, heads: tuple[int, int], own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever blocks of queries and heads that share a tile come to; else the portable kernel takes it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("longca.ops.band.plan.tiles_for", lambda head_dim, _, **how: tiles_for(head_dim, torch.device("cuda"), **how))
    q_bounds, k_bounds = (np.arange(0, 1025, size)[None] for size in (block, 128))
    visible = np.random.default_rng(0).random((1, 1024 // block, 8)) < 0.5
    plan = plan_band_attention(Mask(1024, 1024, grid=BlockGrid(visible, q_bounds, k_bounds)), num_q_heads=heads[0], num_kv_heads=heads[1],
                               head_dim=128, device="cpu")
    _, tuned = plan.kernels[Use.QUERIES]
    assert (tuned.hopper, tuned.rows) == (1, 128) if own else not tuned.hopper


@pytest.mark.parametrize(("num_kv_heads", "in_turns"), [(8, True), (1, False)])
def test_few_kv_heads_have_kernels_of_their_own_for_dq(num_kv_heads: int, in_turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longca.ops.band.plan.tiles_for", lambda head_dim, _, **how: {
        use: tiles for use, tiles in TUNED[head_dim].items() if use is not Use.QUERIES or not how["at_once"]})
    mask = Mask(16384, 16384, (np.array([[0, 16000, 0, 4000, -INF, INF], [16000, 16384, 0, 16384, -INF, INF]]),))
    plan = plan_band_attention(mask, num_q_heads=8, num_kv_heads=num_kv_heads, head_dim=128, device=CPU)
    assert (Use.QUERIES not in plan.kernels) == in_turns


def test_rows_of_a_plan_are_units_that_calls_visit() -> None:
    assert UNIT == UNIT_ROWS


def test_blocks_of_uneven_size_have_short_lines() -> None:
    """Of the rows that a line has room for few are in vain, by heads that share it."""
    mask = build_mask("block_sparse_variable", seqlen=4096, mean_block=128, density=0.5, seed=2)
    lines, tuned = plan_band_attention(mask, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU).kernels[Use.FORWARD]
    assert lines.tile * 4 == tuned.rows == 128
    assert (lines.pieces[0, :, ROW1] - lines.pieces[0, :, ROW0]).float().mean() > 0.8 * lines.tile
    even = build_mask("block_sparse_uniform", seqlen=4096, block=128, density=0.5)
    lines, tuned = plan_band_attention(even, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU).kernels[Use.FORWARD]
    assert lines.tile == tuned.rows == 128
