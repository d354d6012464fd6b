"""Heads cut into chunks: who computes what, and what is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.cp.partition.mesh import HeadChunk, HeadPlan, plan_heads, split_heads
from longca.cp.schedule.planner import INTRA_NODE_BYTES_PER_S
from longca.cp.schedule.work_partition import (
    CANDIDATE_WEIGHTS,
    PARTS_OF_KV_HEAD,
    HeadCost,
    choose_chunks,
    estimated_s,
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[HeadPlan, tuple[HeadChunk, ...] | None]:
    num_kv_heads = draw(st.integers(1, 16))
    ratio = draw(st.sampled_from([1, 2, 4, 6, 8]))
    world = draw(st.integers(1, 24))
    heads = plan_heads(num_kv_heads * ratio, num_kv_heads, world)
    return heads, split_heads(
        heads, draw(st.sampled_from(CANDIDATE_WEIGHTS)), parts=draw(st.sampled_from(PARTS_OF_KV_HEAD))
    )


@given(cuts())
def test_each_rank_computes_its_heads_in_order_and_gets_and_gives_each_kv_head_once(
    cut: tuple[HeadPlan, tuple[HeadChunk, ...] | None],
):
    heads, chunks = cut
    if chunks is None:
        return
    for rank, share in enumerate(heads.ranks):
        parts = [chunk.heads.ranks[rank] for chunk in chunks]
        assert [head for part in parts for head in part.q] == list(share.q)
        assert [head for chunk in chunks for head in chunk.arriving[rank]] == list(share.kv)
        assert [head for chunk in chunks for head in chunk.leaving[rank]] == list(share.kv)
        there = set()
        gone = set()
        for chunk, part in zip(chunks, parts, strict=True):
            there |= set(chunk.arriving[rank])
            assert set(part.kv) <= there - gone
            gone |= set(chunk.leaving[rank])
            assert not chunk.arriving[rank] or chunk.arriving[rank] == part.kv, (
                "all keys of a call have come together"
            )
            assert not chunk.leaving[rank] or chunk.leaving[rank] == part.kv


def test_kv_heads_stay_whole_where_there_are_several():
    of_first = [chunk.heads.ranks[0] for chunk in split_heads(plan_heads(64, 8, 2), (1, 2, 1)) or ()]
    assert [(share.q, share.kv) for share in of_first] == [
        (range(8), range(1)),
        (range(8, 24), range(1, 3)),
        (range(24, 32), range(3, 4)),
    ]


def test_a_lone_kv_head_is_cut_by_query_heads():
    heads = plan_heads(64, 8, 8)
    assert len(split_heads(heads, (1, 2, 1)) or ()) == 1
    chunks = split_heads(heads, (1, 2, 1), parts=4) or ()
    assert [len(chunk.q[5]) for chunk in chunks] == [2, 4, 2]
    assert [chunk.arriving[5] for chunk in chunks] == [range(5, 6), range(5, 5), range(5, 5)]
    assert [len(chunk.leaving[5]) for chunk in chunks] == [0, 0, 1]
    assert split_heads(heads, (1, 3), parts=4) is None, "6 of 8 heads do not share tiles well"


def test_a_chunk_ends_where_a_kv_head_does_that_another_has_begun():
    chunks = split_heads(plan_heads(64, 8, 4), (1, 2, 1), parts=2) or ()
    assert [chunk.q[0] for chunk in chunks] == [range(4), range(4, 8), range(8, 12), range(12, 16)]
    assert [len(chunk.arriving[0]) for chunk in chunks] == [1, 0, 1, 0]


def test_chunks_have_whole_groups_of_the_mask():
    heads = plan_heads(16, 8, 2)
    assert split_heads(heads, (1, 1), num_groups=4) is not None
    assert split_heads(heads, (1, 2, 1), num_groups=4) is None
    assert split_heads(heads, (1, 2, 1), num_groups=8) is not None


def chosen(head_s: float, head_bytes: float, *, backward: bool = False) -> list[int]:
    """Query heads of the first rank in each chunk, of 64:8 heads on 2 ranks."""
    return [
        len(chunk.q[0])
        for chunk in choose_chunks(plan_heads(64, 8, 2), 1, HeadCost(head_s, head_bytes), backward)
    ]


def test_nothing_is_cut_where_it_does_not_pay():
    assert chosen(1e-6, 1e3) == [32], "a kernel call costs more than what it would hide"
    assert chosen(1e-2, 1e3) == [32]
    assert chosen(2e-4, 2e6) == [8, 24] and chosen(2e-4, 2e6, backward=True) == [16, 16], (
        "full, 8K tokens a rank"
    )
    assert chosen(2e-4, 4e6) == [8, 16, 8]
    assert chosen(2e-5, 4e6) == [16, 16], (
        "where the link is busier than the kernels, more chunks only add messages"
    )


@given(st.floats(1e-7, 1e-2), st.floats(0, 1e8), st.booleans())
def test_what_is_chosen_is_within_its_margin_of_the_quickest(
    head_s: float, head_bytes: float, backward: bool
):
    load = HeadCost(head_s, head_bytes)
    heads = plan_heads(64, 8, 2)
    cuts = (
        split_heads(heads, weights, parts=parts)
        for weights in CANDIDATE_WEIGHTS
        for parts in PARTS_OF_KV_HEAD
    )
    all_s = [estimated_s(chunks, load, backward) for chunks in cuts if chunks is not None]
    found_s = estimated_s(choose_chunks(heads, 1, load, backward), load, backward)
    assert min(all_s) <= found_s <= all_s[0]
    assert found_s < min(all_s) * 1.03


def test_a_timeline_by_hand():
    """Two equal chunks of 1 s that move 1 s in all each way: the first half comes, the last goes, and what is
    hidden costs a share."""
    first, two = (split_heads(plan_heads(4, 4, 2), weights) or () for weights in ((1,), (1, 1)))
    load = HeadCost(0.5, INTRA_NODE_BYTES_PER_S / 6)  # 2 heads: 6 messages of heads in, 2 out
    assert estimated_s(first, load, False) == pytest.approx(1 / 3 + 1 + 1, abs=1e-3)
    assert estimated_s(two, load, False) == pytest.approx(1 / 6 + 1 + 1 / 2 + 0.3 * (1 / 2 + 1 / 6), abs=1e-3)


def test_weights_are_met_as_nearly_as_heads_can_be_cut():
    def chunks(
        num_q_heads: int, num_kv_heads: int, world: int, *weights: int, num_groups: int = 1
    ) -> list[int]:
        heads = plan_heads(num_q_heads, num_kv_heads, world)
        return [
            len(chunk.q[0]) for chunk in choose_chunks(heads, num_groups, HeadCost(1.0, 1.0), False, weights)
        ]

    assert chunks(64, 8, 2, 1, 2, 1) == [8, 16, 8]
    assert chunks(64, 8, 2, 1, 6, 1) == [4, 4, 16, 4, 4]
    assert chunks(64, 8, 8, 1, 1) == [4, 4]
    assert chunks(8, 8, 8, 1, 1) == [1]
    with pytest.raises(ValueError, match="cannot be cut as 1:2:1"):
        chunks(16, 8, 2, 1, 2, 1, num_groups=4)
