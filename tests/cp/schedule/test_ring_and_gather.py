"""Rings and gathers: what they send on, and the windows and numbers of ranks that they refuse."""

import pytest
from hypothesis import given

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.planner import partition_mask
from longca.cp.schedule.ring_and_gather import Gather, Ring, RingPlan
from longca.masks import Mask, build_mask
from tests.helpers.cp.plans import plans
from tests.helpers.masks.strategies import quick


@quick
@given(plans())
def test_a_ring_passes_on_only_what_is_there(plan: Plan):
    if not isinstance(plan, RingPlan):
        return
    for rank in range(plan.world):
        for number in range(1, plan.num_steps):
            for move in plan.sends(rank, number):
                (held,) = plan.held_kv(rank, plan.forwarded_from(number))
                assert held[0] == move.owner
                assert held[1] <= move.start < move.end <= held[2]


def test_windows_move_their_halo():
    mask = build_mask("causal_sliding_window", seqlen=640, window=10)
    for schedule in (Gather(), Ring()):
        plan = schedule.plan(mask, make_sharding("contiguous", mask, 8))
        assert plan.received_kv.sum(axis=1).tolist() == [0, *[10] * 7]
        assert [len(plan.steps(rank)) for rank in range(8)] == [1, *[2] * 7]


def test_a_ring_both_ways_meets_neighbours_on_either_side_first():
    mask = build_mask("sliding_window", seqlen=640, window=10)
    one_way, two_way = (
        schedule.plan(mask, make_sharding("contiguous", mask, 8)) for schedule in (Ring(), Ring(two_way=True))
    )
    assert two_way.received_kv.sum(axis=1).tolist() == [10, *[20] * 6, 10]
    assert one_way.received_kv.sum() > 3 * two_way.received_kv.sum()
    assert not two_way.received_kv[:, 3:].any()


def test_what_does_not_go_together_is_refused():
    mask = build_mask("causal", seqlen=64)
    with pytest.raises(ValueError, match="no whole number of windows of 3"):
        Ring(3).plan(mask, make_sharding("zigzag", mask, 4))
    with pytest.raises(ValueError, match="goes one way"):
        Ring(2, two_way=True).plan(mask, make_sharding("zigzag", mask, 4))
    with pytest.raises(ValueError, match="no placement 'heap-x'"):
        make_sharding("heap-x", mask, 4)
    with pytest.raises(ValueError, match="placement of 64 tokens cannot cut"):
        partition_mask(Mask(64, 32, mask.groups), make_sharding("zigzag", mask, 4))
    with pytest.raises(ValueError, match="not in -1"):
        Gather(-1).plan(mask, make_sharding("zigzag", mask, 4))
