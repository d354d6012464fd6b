"""Tables go to a device together, as they are."""

import pytest
import torch
from torch import Tensor

from longca.ops.transfer import ALIGNMENT, on_device, pack, unpack

META = torch.device("meta")


@pytest.fixture
def tables() -> list[Tensor]:
    return [
        torch.arange(15, dtype=torch.int32).view(3, 5),
        torch.empty(2, 0, 4, dtype=torch.int32),
        torch.arange(100)[::3],
        torch.tensor([True, False, True]),
        torch.tensor(2.5),
    ]


def test_packed_tables_are_the_tables(tables: list[Tensor]) -> None:
    packed, offsets = pack(tables)
    assert all(offset % ALIGNMENT == 0 for offset in offsets) and packed.dtype == torch.uint8
    for actual, x in zip(unpack(packed, tables, offsets), tables, strict=True):
        torch.testing.assert_close(actual, x, rtol=0, atol=0)
        assert actual.is_contiguous()


def test_tables_that_are_there_stay_and_shared_ones_are_copied_once(tables: list[Tensor]) -> None:
    there = torch.empty(3, device="meta")
    first, *others, again, kept = on_device([*tables, tables[0], there], META)
    assert first is again and kept is there
    for actual, x in zip([first, *others], tables, strict=True):
        assert actual.device == META and actual.shape == x.shape and actual.dtype == x.dtype
    assert len({entry.untyped_storage()._cdata for entry in [first, *others]}) == 1, "one copy"
    assert on_device(tables, torch.device("cpu"))[0] is tables[0]
