"""Buffers and times of moves: nothing is overwritten or sent on too early, and rings have two buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.plan import OWN, START, BufferSchedule, Plan
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.masks import build_mask
from tests.helpers.cp.plans import plans
from tests.helpers.masks.strategies import quick


@quick
@given(plans(), st.booleans())
def test_a_buffer_is_written_when_nobody_needs_it(plan: Plan, early: bool):
    """Steps in the order in which a rank's host goes through them."""
    for rank in range(plan.world):
        route = BufferSchedule(plan, rank, early)
        held = {OWN: 0}  # buffer → step of the keys in it
        for number in range(START, plan.num_steps):
            if number > 0:
                hop = route.comm_steps[number - 1]
                assert held[hop.buffer] == number, (
                    "a step's keys have set out before it, and are not overwritten"
                )
            for hop in route.posted_after(number):
                assert held[hop.send_buffer] == plan.forwarded_from(hop.number), (
                    "what is sent is what was received for it"
                )
                assert hop.buffer not in (OWN, hop.send_buffer)
                held[hop.buffer] = hop.number
                assert hop.num_keys <= route.buffer_keys[hop.buffer]
                assert early or hop.post_after >= plan.post_after(hop.number)
        assert route.post_after == [START, *(hop.post_after for hop in route.comm_steps)]
        assert route.buffer_keys == [
            max(hop.num_keys for hop in route.comm_steps if hop.buffer == buffer)
            for buffer in range(len(route.buffer_keys))
        ]
        assert sorted(
            hop.number for number in range(START, plan.num_steps) for hop in route.posted_after(number)
        ) == [hop.number for hop in route.comm_steps]


@quick
@given(plans(), st.booleans())
def test_ranks_post_alike(plan: Plan, early: bool):
    routes = [BufferSchedule(plan, rank, early) for rank in range(plan.world)]
    for hops in zip(*(route.comm_steps for route in routes), strict=True):
        assert len({(hop.post_after, hop.stream, hop.buffer, hop.send_buffer) for hop in hops}) == 1


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal", "causal_document"])
@pytest.mark.parametrize(
    ("schedule", "num_buffers"),
    [(Ring(), 2), (Ring(two_way=True), 3), (Ring(4), 4), (Gather(1), 1), (Gather(7), 2)],
)
def test_the_number_of_buffers_does_not_grow_with_ranks(
    schedule: Gather | Ring, num_buffers: int, mask: str, early: bool
):
    for world in (16, 48):
        whole = build_mask(mask, seqlen=world * 8)
        route = BufferSchedule(schedule.plan(whole, make_sharding("zigzag", whole, world)), 1, early)
        assert len(route.buffer_keys) == num_buffers


def test_keys_for_the_next_window_set_out_a_window_ahead():
    mask = build_mask("full", seqlen=64)
    hops = BufferSchedule(
        Ring(4).plan(mask, make_sharding("contiguous", mask, 16)), 0, early=False
    ).comm_steps
    assert {hop.number: (hop.post_after, hop.stream) for hop in hops if hop.number % 4 == 0} == {
        4: (START, "keys of windows"),
        8: (3, "keys of windows"),
        12: (7, "keys of windows"),
    }
    assert {(hop.number - hop.post_after, hop.stream) for hop in hops if hop.number % 4} == {(2, "keys")}
