"""Heads that share a tile, and heads whose work tiles start together."""

import pytest

from longca.masks import build_mask
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.heads import heads_at_once, heads_per_item_of
from tests.helpers.ops.backward_tables import mask_of

LAST = AddOrder.FROM_LAST
FIRST = AddOrder.FROM_FIRST


@pytest.mark.parametrize(
    ("name", "seqlen", "order", "heads", "rounds"),
    [
        ("full", 32768, LAST, 1, 1),
        ("full", 8192, LAST, 4, 1),
        ("full", 8192, FIRST, 2, 1),
        ("full", 7168, FIRST, 4, 1),
        ("prefix_lm", 8192, FIRST, 2, 2),
        ("prefix_lm", 32768, LAST, 4, 1),
        ("causal", 32768, LAST, 4, 1),
        ("causal", 8192, FIRST, 1, 1),
        ("causal_document", 32768, FIRST, 1, 1),
        ("full_document", 32768, FIRST, 2, 2),
        ("causal", 32768, AddOrder.ANY, 1, 1),
    ],
)
def test_heads_at_once(name: str, seqlen: int, order: AddOrder, heads: int, rounds: int) -> None:
    mask = mask_of(name, seqlen)
    assert heads_at_once(mask, order, 8, 8, 1, 128) == (heads, rounds)
    assert heads_at_once(mask, order, 2, 8, 1, 128) == (min(heads, 2), rounds)
    assert heads_at_once(mask, order, 8, 1, 1, 128) == (heads * rounds, 1), (
        "of which each has its own KV head"
    )


@pytest.mark.parametrize(
    ("queries", "keys", "heads"), [(4096, 8192, 4), (4096, 24576, 4), (8192, 32768, 2), (16384, 32768, 1)]
)
def test_the_fewer_queries_the_more_heads_start_together(queries: int, keys: int, heads: int) -> None:
    """Work tiles follow each other through the queries, so that few heads with few queries would leave
    programs idle."""
    assert heads_at_once(
        build_mask("full", seqlen=keys).crop((0, queries), (0, keys)), FIRST, 8, 8, 1, 128
    ) == (heads, 1)


def test_a_window_takes_four_heads_for_each_work_tile() -> None:
    """A narrow one, where there are enough items; then of one KV head."""
    window = mask_of("sliding_window", 8192)
    wide = build_mask("sliding_window", seqlen=8192, window=4096)
    assert [heads_per_item_of(window, FIRST, heads, 128) for heads in (64, 32, 16, 8)] == [4, 2, 1, 1]
    assert [heads_at_once(window, FIRST, 8, 8 // heads, heads, 128) for heads in (4, 2, 1)] == [
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    assert heads_per_item_of(wide, FIRST, 64, 128) == heads_per_item_of(window, LAST, 64, 128) == 1
    assert heads_per_item_of(mask_of("causal", 8192), FIRST, 64, 128) == 1
    nearly_causal = build_mask("causal_sliding_window", seqlen=8192, window=6000)
    assert heads_at_once(nearly_causal, FIRST, 8, 8, 1, 128) == (1, 1)
