"""Numbers beyond any length: no bound where they are a window, one line where they are tokens, and never a
sum that wraps around."""

import sys

import numpy as np
import pytest

from longca.core.errors import UserError
from longca.masks import Mask

LARGE = [1 << 41, sys.maxsize, 1 << 63, 1 << 70]


@pytest.mark.parametrize("large", LARGE)
def test_a_large_window_is_no_bound(large: int):
    assert Mask.from_windows(8, (large, 0)) == Mask.from_windows(8, (-1, 0))
    assert Mask.from_cu_seqlens([0, 1, 2], cu_seqlens_k=[0, 3, 8], window=(0, large)) == Mask.from_cu_seqlens(
        [0, 1, 2], cu_seqlens_k=[0, 3, 8], window=(0, -1)
    )
    assert Mask.from_cu_seqlens([0, 3, 8], cu_seqlens_k=[0, 1, 2], window=(large, 0)) == Mask.from_cu_seqlens(
        [0, 3, 8], cu_seqlens_k=[0, 1, 2], window=(-1, 0)
    )
    assert Mask.from_bands(8, [[0, 8, 0, 8, -large, large]]).area == 64


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mask.from_documents([1 << 62] * 4 + [8]),
        lambda: Mask.from_tree([-1, *range(4)], [1 << 62] * 4 + [8]),
        lambda: Mask.from_block_map([1 << 62] * 4 + [8], 4, np.ones((5, 2), dtype=bool)),
        lambda: Mask.from_document_ids(np.array([3, 3, (1 << 64) - 1], dtype=np.uint64)),
        lambda: Mask.from_windows(1 << 63, (1, 0)),
    ],
)
def test_large_numbers_of_tokens_are_refused_in_one_line(make):
    with pytest.raises(
        UserError, match=r"is among them|sum to 1.84e\+19|would have 9223372036854775808"
    ) as error:
        make()
    assert "\n" not in str(error.value)
