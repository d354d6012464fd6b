"""The tables of band attention against the raster: every visible pair once, and no other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask
from longca.ops import band_config
from longca.ops.band_config import HOPPER_GRADIENTS, HOPPER_KEYS, TUNED, Use, tiles_for
from longca.ops.band_lines import FIRST, LAST, LINE, MIDDLE, NUM_FULL, ROW0, ROW1, SLOT, Lines
from longca.ops.band_plan import make_lines
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
    for transposed in (False, True):
        lines = make_lines(mask, tile, step, transposed=transposed, device=CPU, **limits)
        num_rows, num_cols = (mask.seqlen_k, mask.seqlen_q) if transposed else (mask.seqlen_q, mask.seqlen_k)
        np.testing.assert_array_equal(raster(lines, num_rows, num_cols), right.transpose(0, 2, 1) if transposed else right)
        check_order(lines, num_rows, most)
        in_order = make_lines(mask, tile, step, transposed=transposed, device=CPU, in_order=True, **limits)
        check_turns(in_order, num_cols + step)


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
def test_patterns(name: str, sizes: tuple[int, int]) -> None:
    check(pattern_mask(name), *sizes)
    check(pattern_mask(name), *sizes, most=2)


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=str)
def test_nothing_visible(mask: Mask) -> None:
    check(mask, 16, 8)


@quick
@given(band_masks(max_groups=2) | complementary_masks() | grid_masks(), st.sampled_from(SIZES), st.sampled_from([None, 1, 3]))
def test_random_masks(mask: Mask, sizes: tuple[int, int], most: int | None) -> None:
    check(mask, *sizes, most=most)


def test_causal_has_one_shape_and_steps_that_fit() -> None:
    from longca.masks import build_mask

    lines = make_lines(build_mask("causal", seqlen=256), 32, 32, transposed=False, device=CPU)
    assert len(lines.shapes) == 1
    pieces = lines.pieces[0].numpy()
    np.testing.assert_array_equal(pieces[:, NUM_FULL], np.arange(8)[::-1])
    assert (pieces[:, LAST] - pieces[:, MIDDLE] == 1).all()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("pack", "seen", "on_hopper"),
                         [(1, True, False), (2, True, False), (4, True, True), (8, True, True), (8, False, False)])
def test_what_makes_gradients_on_hopper(monkeypatch: pytest.MonkeyPatch, pack: int, seen: bool, on_hopper: bool,
                                        deterministic: bool) -> None:
    """Few heads keep the portable kernel; all do until a GPU has run the others."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(band_config, "SEEN_ON_A_GPU", seen)
    tiles = tiles_for(128, torch.device("cuda"), pack=pack, deterministic=deterministic)
    on_hopper_with = HOPPER_KEYS if deterministic else HOPPER_GRADIENTS
    assert tiles[Use.KEYS] == (on_hopper_with if on_hopper else TUNED[128][Use.KEYS])
    assert (Use.QUERIES in tiles) == (deterministic or not on_hopper)
