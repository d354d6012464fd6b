"""Masks are built once for the cells that share them, and few are kept."""

from longca.bench.measure.latest import KEPT, LatestMasks
from longca.masks.build import cell_mask
from tests.bench.cells import small_cell


def test_cells_of_one_mask_share_it_and_its_cost() -> None:
    masks, forward, backward = LatestMasks(), small_cell(direction="fwd"), small_cell(direction="bwd")
    mask, build_ms = masks.get(forward)
    assert masks.get(backward) == (mask, build_ms) and build_ms > 0
    assert mask.digest == cell_mask(backward).digest


def test_other_masks_push_old_ones_out() -> None:
    masks = LatestMasks()
    first = masks.get(small_cell(seqlen=64))[0]
    for number in range(KEPT):
        other = masks.get(small_cell(seqlen=65 + number))[0]
        assert other.seqlen_q == 65 + number
    assert masks.get(small_cell(seqlen=64))[0] is not first
