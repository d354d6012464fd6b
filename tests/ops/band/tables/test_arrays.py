"""Tables are the same by NumPy and by tensors."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Mask
from longca.ops.band.plan import schedules_on
from longca.ops.band.tables.schedule import NUMBERS, AddOrder, TileSpec
from tests.helpers.kernels.masks_for_tests import band_masks
from tests.helpers.masks.strategies import quick

CPU = torch.device("cpu")


@quick
@given(band_masks(max_groups=2), st.sampled_from([None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST]))
def test_tables_are_the_same_by_numpy_and_by_tensors(mask: Mask, order: AddOrder | None) -> None:
    """As on a GPU, and as on the host."""
    specs = [
        TileSpec(16, 64, False, narrow_n=32, max_fraction=0.3, min_blocks=1),
        TileSpec(32, 16, True, in_order=order or AddOrder.ANY, stores_first=order is AddOrder.FROM_FIRST),
        TileSpec(8, 32, False),
    ]
    for by_numpy, by_tensors in zip(
        schedules_on(mask, specs, None), schedules_on(mask, specs, CPU), strict=True
    ):
        for table, other in zip(by_numpy.tables, by_tensors.tables, strict=True):
            assert table.dtype == other.dtype and torch.equal(table, other)
        numbers, others = (
            [getattr(schedule, name) for name in NUMBERS] for schedule in (by_numpy, by_tensors)
        )
        assert numbers == others
