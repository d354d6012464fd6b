"""Shardings: permutations of the sequence, even in areas or in tokens."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longca.cp.partition.sharding import TARGET_IMBALANCE, best_swap, even_ranges, make_sharding
from longca.cp.schedule.planner import partition_mask
from longca.masks import build_mask
from tests.helpers.cp.plans import PERMUTATIONS
from tests.helpers.masks.strategies import quick


@quick
@given(st.integers(1, 70), st.integers(1, 6), st.sampled_from(PERMUTATIONS))
def test_permutations(seqlen: int, world: int, name: str):
    placement = make_sharding(name, build_mask("causal", seqlen=seqlen), world)
    assert np.array_equal(np.sort(placement.order), np.arange(seqlen))
    assert np.array_equal(placement.order[placement.inverse], np.arange(seqlen))
    tokens = np.arange(seqlen + 1)
    before = placement.num_before(tokens)
    for rank in range(world):
        mine = placement.positions(rank)
        assert (np.diff(mine) > 0).all()
        assert len(mine) == placement.num_tokens[rank]
        assert np.array_equal(before[:, rank], np.searchsorted(mine, tokens))
        assert np.array_equal(placement.num_before_on(tokens, rank), before[:, rank])
        assert np.array_equal(mine, [token for part in placement.ranges(rank) for token in part])
    if seqlen >= 9 * world:
        assert np.ptp(placement.num_tokens) <= 9


def test_heap_balances_documents():
    mask = build_mask("causal_document", seqlen=8192, documents=np.array([5000, 100, 92, 3000]))
    areas = {
        name: partition_mask(mask, make_sharding(name, mask, 4)).areas.sum(axis=1)
        for name in ("contiguous", "heap-64")
    }
    assert areas["heap-64"].max() < 1.02 * areas["heap-64"].mean()
    assert areas["contiguous"].max() > 1.4 * areas["contiguous"].mean()


@pytest.mark.parametrize("world", [2, 4, 96])
@pytest.mark.parametrize(
    "name", ["causal_document", "full_document", "shared_question", "block_sparse_variable"]
)
def test_level_never_makes_the_largest_area_larger(name: str, world: int):
    mask = build_mask(name, seqlen=world * 1024, seed=3)
    plain = make_sharding("contiguous", mask, world)
    placed = make_sharding("level-64", mask, world)
    plain_areas, areas = (partition_mask(mask, entry).areas.sum(axis=1) for entry in (plain, placed))
    assert areas.sum() == plain_areas.sum() and areas.max() <= plain_areas.max()
    assert (placed.num_tokens == plain.num_tokens).all()


def test_level_leaves_most_tokens_where_they_are():
    mask = build_mask("causal_document", seqlen=8192, documents=np.array([5000, 100, 92, 3000]))
    plain = make_sharding("contiguous", mask, 4)
    placed = make_sharding("level-64", mask, 4)
    areas = partition_mask(mask, placed).areas.sum(axis=1)
    assert areas.max() <= TARGET_IMBALANCE * areas.mean()
    stayed = np.mean([np.isin(placed.positions(rank), plain.positions(rank)) for rank in range(4)])
    of_heap = np.mean(
        [
            np.isin(make_sharding("heap-64", mask, 4).positions(rank), plain.positions(rank))
            for rank in range(4)
        ]
    )
    assert of_heap < 0.5 < stayed < 1


def test_level_stays_contiguous_where_no_swap_helps():
    """Nearly all area is in the first of four chunks: whoever has it has the most."""
    placed = make_sharding(
        "level-16", build_mask("full_document", seqlen=64, documents=np.array([16, *[1] * 48])), 2
    )
    assert [placed.positions(rank).tolist() for rank in range(2)] == [list(range(32)), list(range(32, 64))]


@quick
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 60), min_size=5, max_size=5),
)
def test_the_best_swap_is_the_best_of_all(others: list[list[int]], ours: list[int]):
    """Ours has the most; each pair of chunks is tried."""
    mine = np.sort(ours)
    theirs = np.sort(others, axis=1)
    area = int(mine.sum())
    areas = theirs.sum(axis=1)
    assume(area >= areas.max())
    larger, first, rank, other = best_swap(mine, theirs, area, areas, np.arange(len(theirs)) + 7)
    moved = {
        (i, k, j): int(mine[i] - theirs[k, j]) for i in range(5) for k in range(len(theirs)) for j in range(5)
    }
    assert larger == min(max(area - less, areas[k] + less) for (_, k, _), less in moved.items())
    less = moved[first, rank - 7, other]
    assert larger == max(area - less, areas[rank - 7] + less)


@given(st.integers(0, 1000), st.integers(1, 100))
def test_even_ranges_cover_all_in_order_and_differ_by_one_at_most(total: int, parts: int):
    ranges = even_ranges(total, parts)
    lengths = [len(part) for part in ranges]
    assert [item for part in ranges for item in part] == list(range(total))
    assert len(ranges) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
