"""Plans against rasters: random masks, numbers of ranks, permutations and schedules."""

import numpy as np
from hypothesis import given

from longca.cp.partition.sharding import StripedSharding
from longca.cp.schedule.plan import Plan, Step, Transfer
from longca.cp.schedule.ring_and_gather import RingPlan
from tests.helpers.cp.plans import all_steps, plans
from tests.helpers.kernels.masks_for_tests import rasters
from tests.helpers.masks.strategies import quick


def positions(plan: Plan, step: Step) -> np.ndarray:
    """Positions of the keys in a step's buffer."""
    return np.concatenate(
        [plan.sharding.positions(source)[first:behind] for source, first, behind in step.keys]
    )


def moved(plan: Plan, rank: int, number: int) -> list[tuple[int, int, int]]:
    """Parts of a rank's KV that come from others."""
    return [part for part in plan.held_kv(rank, number) if part[0] != rank]


@quick
@given(plans())
def test_every_visible_pair_is_computed_once(plan: Plan):
    mask = plan.partition.mask
    times = np.zeros((mask.num_groups, mask.seqlen_q, mask.seqlen_k), dtype=int)
    for step in all_steps(plan):
        assert (step.mask.seqlen_q, step.mask.seqlen_k) == (
            plan.sharding.num_tokens[step.rank],
            step.num_keys,
        )
        assert step.mask.num_groups == mask.num_groups
        assert step.mask.area == step.area > 0
        times[:, plan.sharding.positions(step.rank)[:, None], positions(plan, step)] += rasters(step.mask)
    assert np.array_equal(times, rasters(mask))
    assert plan.step_areas.sum() == mask.area


@quick
@given(plans())
def test_what_is_received_is_what_was_sent(plan: Plan):
    for number in range(plan.num_steps):
        received = {(rank, move) for rank in range(plan.world) for move in plan.receives(rank, number)}
        sent = {
            (move.peer, Transfer(rank, move.owner, move.start, move.end))
            for rank in range(plan.world)
            for move in plan.sends(rank, number)
        }
        assert received == sent
        assert all(move.peer != rank and len(move) > 0 for rank, move in received)
        for rank in range(plan.world):
            assert sum(map(len, plan.receives(rank, number))) == plan.received_kv[rank, number]
            assert sum(map(len, plan.sends(rank, number))) == plan.sent_kv[rank, number]
            if number:
                assert [(move.owner, move.start, move.end) for move in plan.receives(rank, number)] == moved(
                    plan, rank, number
                )
                assert plan.num_own_kv(rank, number) in (0, plan.sharding.num_tokens[rank])


@quick
@given(plans())
def test_gradients_go_home_to_who_holds_the_keys(plan: Plan):
    """Those of all that a rank computes with, each key's once for each rank that sees it."""
    for number in range(plan.num_steps):
        sent = {(rank, move) for rank in range(plan.world) for move in plan.dkv_sends(rank, number)}
        received = {
            (move.peer, Transfer(rank, move.owner, move.start, move.end))
            for rank in range(plan.world)
            for move in plan.dkv_receives(rank, number)
        }
        assert sent == received
        assert all(move.peer == move.owner != rank and len(move) > 0 for rank, move in sent)
    for step in all_steps(plan):
        sent = [(move.owner, move.start, move.end) for move in plan.dkv_sends(step.rank, step.number)]
        assert sent == [part for part in step.keys if part[0] != step.rank]


@quick
@given(plans())
def test_nothing_moves_that_nobody_needs(plan: Plan):
    """A gather moves what is seen; a ring, from the first to the last key that some rank further on sees.
    Stripes may move more."""
    visible = rasters(plan.partition.mask).any(axis=0)
    seen = [visible[plan.sharding.positions(rank)].any(axis=0) for rank in range(plan.world)]
    for rank in range(plan.world):
        for number in range(1, plan.num_steps):
            for source, first, behind in moved(plan, rank, number):
                keys = plan.sharding.positions(source)
                waiting = (
                    [rank]
                    if not plan.forwards_kv
                    else [
                        later
                        for later in range(plan.world)
                        for step in range(plan.num_steps)
                        if any(part[0] == source for part in plan.held_kv(later, step))
                        and passes(plan, number, step)
                    ]
                )
                needed = np.any([seen[other][keys] for other in waiting], axis=0)
                assert needed.any()
                if not isinstance(plan.sharding, StripedSharding):
                    inside = needed[first:behind]
                    assert inside[0] and inside[-1] if plan.forwards_kv else inside.all()
                assert (
                    plan.forwards_kv
                    or isinstance(plan.sharding, StripedSharding)
                    or plan.step_areas[rank, number] > 0
                )


def passes(plan: Plan, number: int, step: int) -> bool:
    """Are a ring's keys of `number` those of `step`, or on their way there?"""
    assert isinstance(plan, RingPlan)
    while step > number:
        step = plan.forwarded_from(step)
    return step == number
