"""Full and partial tiles against counting the elements of every tile."""

import numpy as np
import pytest
from hypothesis import given

from longca.lowering.tiles import Csr, Runs, Tiles, col_tiles, row_tiles, tile_counts
from longca.masks import Mask
from tests.helpers.kernels import masks_for_tests
from tests.helpers.kernels.masks_for_tests import (
    NOTHING_VISIBLE,
    PATTERNS,
    pattern_mask,
    rasters,
    uniform_grid,
)
from tests.helpers.support import examples

SIZES = [(16, 16), (16, 8), (8, 24)]


def counted(raster: np.ndarray, tile_q: int, tile_k: int, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """(full, partial) bool matrices of tiles."""
    padding = [(0, -raster.shape[0] % tile_q), (0, -raster.shape[1] % tile_k)]

    def sums(elements: np.ndarray) -> np.ndarray:
        padded = np.pad(elements.astype(int), padding)
        return padded.reshape(padded.shape[0] // tile_q, tile_q, padded.shape[1] // tile_k, tile_k).sum(
            axis=(1, 3)
        )

    seen = sums(raster)
    there = sums(np.ones_like(raster))
    full = seen == (tile_q * tile_k if whole else there)
    return full, (seen > 0) & ~full


def matrix(csr: Csr, num_across: int) -> np.ndarray:
    out = np.zeros((len(csr.offsets) - 1, num_across), dtype=bool)
    for line in range(len(out)):
        indices = csr.indices[csr.offsets[line] : csr.offsets[line + 1]]
        assert (np.diff(indices) > 0).all()
        out[line, indices] = True
    return out


def check_runs(runs: Runs) -> None:
    for line in range(len(runs.offsets) - 1):
        first, behind = runs.bounds[runs.offsets[line] : runs.offsets[line + 1]].T
        assert (first < behind).all()
        assert (first[1:] > behind[:-1]).all(), "runs are ascending and as long as can be"


def check(mask: Mask, tile_q: int, tile_k: int, whole: bool = False) -> None:
    for group, raster in enumerate(rasters(mask)):
        wanted = counted(raster, tile_q, tile_k, whole)
        rows = row_tiles(mask, tile_q, tile_k, group, whole=whole)
        cols = col_tiles(mask, tile_q, tile_k, group, whole=whole)
        assert (rows.num_lines, rows.num_across) == wanted[0].shape == (cols.num_across, cols.num_lines)
        if not whole:
            for columns in (False, True):
                counts = tile_counts(mask, tile_q, tile_k, group, columns=columns)
                for count, answer in zip(counts, wanted, strict=True):
                    assert np.array_equal(count, answer.sum(axis=0 if columns else 1))
        for tiles, answer in ((rows, wanted), (cols, (wanted[0].T, wanted[1].T))):
            compare(tiles, answer)


def compare(tiles: Tiles, answer: tuple[np.ndarray, np.ndarray]) -> None:
    for runs, csr, wanted in (
        (tiles.full_runs, tiles.full, answer[0]),
        (tiles.partial_runs, tiles.partial, answer[1]),
    ):
        check_runs(runs)
        assert runs.total == len(csr.indices)
        assert (csr.offsets.dtype, csr.indices.dtype, runs.bounds.dtype) == (np.int64, np.int32, np.int32)
        assert np.array_equal(matrix(csr, tiles.num_across), wanted)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str, whole: bool):
    for tile_q, tile_k in SIZES:
        check(pattern_mask(name), tile_q, tile_k, whole)


@examples(150)
@given(mask=masks_for_tests.band_masks())
def test_any_bands(mask: Mask):
    for tile_q, tile_k in SIZES:
        check(mask, tile_q, tile_k)


@examples(60)
@given(mask=masks_for_tests.complementary_masks())
def test_bands_that_fill_a_tile_together(mask: Mask):
    for tile_q, tile_k in SIZES:
        check(mask, tile_q, tile_k, whole=True)
        check(mask, tile_q, tile_k)


@examples(100)
@given(mask=masks_for_tests.grid_masks())
def test_any_blocks(mask: Mask):
    for tile_q, tile_k in SIZES:
        check(mask, tile_q, tile_k)


@pytest.mark.parametrize("block_q, block_k", [(16, 16), (8, 8), (32, 32), (24, 4), (12, 20)])
def test_uniform_blocks_beside_any_tile(block_q: int, block_k: int):
    for tile_q, tile_k in SIZES:
        check(uniform_grid(90, block_q, block_k, groups=2, seed=block_q), tile_q, tile_k, whole=True)


def test_blocks_and_their_bands_have_the_same_tiles():
    mask = uniform_grid(96, 16, 8, groups=1, seed=1)
    as_bands = Mask(96, 96, tuple(mask.groups))
    for lower in (row_tiles, col_tiles):
        of_grid = lower(mask, 16, 16)
        of_bands = lower(as_bands, 16, 16)
        assert np.array_equal(of_grid.full_runs.bounds, of_bands.full_runs.bounds)
        assert np.array_equal(of_grid.partial_runs.bounds, of_bands.partial_runs.bounds)


def test_runs_stay_small_where_tiles_are_many():
    tiles = row_tiles(pattern_mask("causal"), 1, 1)
    assert len(tiles.full_runs.bounds) == 101
    assert len(tiles.full.indices) == 101 * 102 // 2


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=repr)
def test_nothing_visible(mask: Mask):
    check(mask, 16, 16)
