"""The rule that selects band attention's backward, by masks at its limits and by a count pair by pair."""

import numpy as np
import pytest
from hypothesis import given

from longca.masks import Mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.ops.band.tables import backward_rule
from longca.ops.band.tables.backward_rule import (
    APART,
    FILLED,
    TWO_KERNELS,
    AddOrder,
    is_staircase,
    keys_of_last_query,
    orders_of_parts,
    preferred_dq_order,
)
from tests.helpers.kernels.masks_for_tests import NOTHING_VISIBLE, band_masks
from tests.helpers.masks.strategies import quick
from tests.helpers.ops.backward_tables import mask_of

LAST = AddOrder.FROM_LAST
FIRST = AddOrder.FROM_FIRST


@pytest.mark.parametrize(
    ("name", "seqlen", "order"),
    [
        ("full", 8192, FIRST),
        ("full", 8193, LAST),
        ("causal", 32768, FIRST),
        ("causal", 32769, LAST),
        ("prefix_lm", 8192, FIRST),
        ("causal_blockwise", 32768, LAST),
        ("full", 1024, None),
        ("causal_blockwise", 8192, None),
        ("sliding_window", 8192, FIRST),
        ("causal_sliding_window", 32768, None),
        ("full_document", 32768, FIRST),
        ("full_document", 8192, None),
        ("causal_document", 32768, FIRST),
        ("causal_document", 8192, None),
        ("causal_document", 131072, FIRST),
        ("shared_question", 32768, FIRST),
        ("global_sliding_window", 32768, FIRST),
        ("global_sliding_window", 8192, None),
        ("block_causal_document", 32768, FIRST),
        ("block_sparse_uniform", 8192, None),
    ],
)
def test_who_takes_turns(name: str, seqlen: int, order: AddOrder | None) -> None:
    assert preferred_dq_order(mask_of(name, seqlen), 8) is order


@pytest.mark.parametrize(
    ("name", "seqlen", "order", "of_few"),
    [
        ("full", 32768, LAST, LAST),
        ("causal", 32768, FIRST, FIRST),
        ("causal", 65536, LAST, LAST),
        ("prefix_lm", 32768, LAST, LAST),
        ("sliding_window", 32768, FIRST, FIRST),
        ("block_causal_document", 65536, FIRST, FIRST),
        ("causal_blockwise", 32768, LAST, None),
        ("full_document", 16384, FIRST, None),
        ("full_document", 65536, FIRST, None),
        ("causal_document", 32768, FIRST, None),
        ("shared_question", 65536, FIRST, None),
        ("global_sliding_window", 32768, FIRST, None),
    ],
)
def test_few_heads_take_turns_where_work_tiles_are_long_and_alike(
    name: str, seqlen: int, order: AddOrder, of_few: AddOrder | None
) -> None:
    mask = mask_of(name, seqlen)
    assert preferred_dq_order(mask, 4) is order and {
        preferred_dq_order(mask, few) for few in (1, 2, 3, 5, 6, 7)
    } == {of_few}


@pytest.mark.parametrize(
    ("name", "stairs"),
    [
        ("causal", True),
        ("causal_document", True),
        ("shared_question", True),
        ("sliding_window", True),
        ("full", False),
        ("full_document", False),
        ("block_causal_document", False),
        ("global_sliding_window", False),
        ("prefix_lm", False),
        ("causal_blockwise", False),
        ("block_sparse_uniform", False),
    ],
)
def test_staircases(name: str, stairs: bool) -> None:
    """`global_sliding_window` begins every work tile at row 0; under `causal_blockwise` work tiles of a
    document meet in its last rows."""
    assert is_staircase(mask_of(name, 8192)) is stairs


@quick
@given(band_masks(max_groups=1))
def test_a_staircase_has_work_tiles_that_begin_apart_and_see_all_between(mask: Mask) -> None:
    """Judged here pair by pair, under work tiles of few keys."""
    tile = 8
    dense = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    columns = [dense[:, start : start + tile] for start in range(0, mask.seqlen_k, tile)]
    rows = [np.flatnonzero(column.any(axis=1)) for column in columns]
    spans = [(int(row[0]), int(row[-1]) + 1) for row in rows if len(row)]
    apart = len({start // tile for start, _ in spans}) >= APART * len(spans) > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward_rule, "TILE", tile)
        assert is_staircase(mask) is (
            apart and bool(dense.sum() >= FILLED * tile * sum(end - start for start, end in spans))
        )


def rows_that_see(*parts: tuple[int, int]) -> np.ndarray:
    """Bands of so many rows, one part after the other, that see so many of the keys, the first ones."""
    ends = np.cumsum([rows for rows, _ in parts])
    return np.array(
        [[end - rows, end, 0, keys, -INF, INF] for end, (rows, keys) in zip(ends, parts, strict=True)]
    )


@pytest.mark.parametrize(
    ("num_rows", "num_keys", "of_the_last", "order"),
    [
        (3000, 3500, 3500, FIRST),
        (2999, 3500, 3500, None),
        (3000, 3499, 3499, None),
        (9000, 9000, 8100, LAST),
        (9000, 9000, 8099, FIRST),
    ],
)
def test_pieces_must_be_long_and_many_and_begin_alike(
    num_rows: int, num_keys: int, of_the_last: int, order: AddOrder | None
) -> None:
    bands = rows_that_see((num_rows - 1, num_keys), (1, of_the_last))
    assert preferred_dq_order(Mask(num_rows, num_keys, (bands,)), 2) is order
    assert preferred_dq_order(Mask(num_rows, num_keys, (bands, bands)), 2) is order
    assert (
        preferred_dq_order(Mask(num_rows * 2, num_keys * 2, (bands, np.empty((0, 6), dtype=np.int64))), 2)
        is None
    )


@pytest.mark.parametrize(("num_rows", "of_few"), [(6667, FIRST), (6666, None)])
def test_few_heads_want_work_tiles_of_two_fifths_of_the_longest(
    num_rows: int, of_few: AddOrder | None
) -> None:
    """A tenth of the keys is seen by all 20000 queries. Of a part with less queries work tiles have no more
    than these."""
    mask = Mask(20000, 20000, (rows_that_see((num_rows, 20000), (20000 - num_rows, 2000)),))
    assert [preferred_dq_order(mask, heads) for heads in (1, 3, 7, 8)] == [of_few, of_few, of_few, FIRST]
    parts = [
        mask,
        mask.crop((0, 12000), (0, 20000)),
        mask.crop((0, 20000), (0, 2000)),
        mask.crop((12000, 20000), (0, 20000)),
    ]
    sizes = (np.array([getattr(part, name) for part in parts]) for name in ("area", "seqlen_q", "seqlen_k"))
    assert orders_of_parts(mask, *sizes, 3).tolist() == [
        of_few or TWO_KERNELS,
        FIRST,
        TWO_KERNELS,
        TWO_KERNELS,
    ]
    assert preferred_dq_order(parts[1], 3) is FIRST


def test_groups_of_heads_count_by_their_mean() -> None:
    few_keys = rows_that_see((3000, 2500))
    assert preferred_dq_order(Mask(3000, 2500, (few_keys, few_keys)), 8) is None
    few_queries = rows_that_see((16383, 4100), (1, 16384))
    assert [
        preferred_dq_order(Mask(16384, 16384, (few_queries, few_queries)), heads) for heads in (2, 4)
    ] == [None, LAST]
    half_blind = rows_that_see((7999, 8000), (1, 4000))
    assert preferred_dq_order(Mask(8000, 8000, (rows_that_see((8000, 8000)), half_blind)), 8) is FIRST


def test_the_last_query_may_be_followed_by_some_that_see_nothing() -> None:
    seen = rows_that_see((4800, 4200))
    assert (
        preferred_dq_order(Mask(4800, 4200, (seen,)), 8)
        is preferred_dq_order(Mask(4900, 4200, (seen,)), 8)
        is FIRST
    )


@quick
@given(band_masks(max_groups=1))
def test_what_the_last_query_sees_is_counted(mask: Mask) -> None:
    dense = mask.dense().reshape(mask.seqlen_q, mask.seqlen_k)
    seeing = np.flatnonzero(dense.any(axis=1))
    assert keys_of_last_query(mask.groups[0]) == (dense[seeing[-1]].sum() if len(seeing) else 0)


def test_blocks_and_nothing_visible_take_no_turns() -> None:
    bounds = np.arange(0, 8193, 128)[None]
    assert not preferred_dq_order(
        Mask(8192, 8192, grid=BlockGrid(np.ones((1, 64, 64), dtype=bool), bounds, bounds)), 8
    )
    nothing = Mask(0, 0, (np.empty((0, 6), dtype=np.int64),))
    assert not any(
        preferred_dq_order(mask, heads) for mask in (*NOTHING_VISIBLE, nothing) for heads in (1, 8)
    )
