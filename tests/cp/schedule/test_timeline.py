"""The time model: what must hold of any plan, and timelines by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.plan import Plan, StepMessages
from longca.cp.schedule.planner import LinkSpeeds, UnitCosts, cost_of
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.cp.schedule.timeline import PlanTraffic, Timeline, head_pipeline, timeline
from longca.masks import build_mask
from tests.helpers.cp.plans import plans
from tests.helpers.masks.strategies import quick

SCHEDULES = {
    "gather": Gather(),
    "gather-first": Gather(0),
    "gather-3": Gather(3),
    "ring": Ring(),
    "double-ring": Ring(2),
    "two-way": Ring(two_way=True),
}


def plan_of(
    mask: str, world: int, schedule: Gather | Ring, permutation: str = "contiguous", seqlen: int = 48
) -> Plan:
    documents = np.full(world, seqlen // world) if "document" in mask else None
    built = build_mask(mask, seqlen=seqlen, documents=documents)
    return schedule.plan(built, make_sharding(permutation, built, world))


def drawn(plan: Plan, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(step_s, key_s), of sizes that make now kernels and now messages the longer ones."""
    rng = np.random.default_rng(seed)
    step_s = rng.exponential(10, plan.step_areas.shape) * (plan.step_areas > 0)
    return step_s, rng.exponential(1, (plan.world, plan.world)) * rng.choice([0.1, 1, 10])


def dense(steps: tuple[StepMessages, ...], world: int) -> np.ndarray:
    """Tokens by (step, receiver, sender)."""
    values = np.zeros((len(steps), world, world), dtype=np.int64)
    for number, step in enumerate(steps):
        np.add.at(values[number], (step.receiver, step.sender), step.tokens)
    return values


def even(world: int, seconds: float) -> np.ndarray:
    return np.full((world, world), seconds)


@quick
@given(plans())
def test_traffic_is_that_of_the_plan(plan: Plan):
    traffic = PlanTraffic.of(plan)
    kv = dense(traffic.kv, plan.world)
    dkv = dense(traffic.dkv, plan.world)
    listed = np.zeros_like(kv)
    for rank in range(plan.world):
        for number in range(plan.num_steps):
            for transfer in plan.receives(rank, number):
                listed[number, rank, transfer.peer] += len(transfer)
    np.testing.assert_array_equal(kv, listed)
    np.testing.assert_array_equal(kv.sum(axis=2).T, plan.received_kv)
    np.testing.assert_array_equal(kv.sum(axis=1).T, plan.sent_kv)
    home = [
        [sum(map(len, plan.dkv_receives(rank, number))) for number in range(1, plan.num_steps)]
        for rank in range(plan.world)
    ]
    np.testing.assert_array_equal(dkv.sum(axis=2).T[:, 1:], home)
    times = zip(traffic.post_after, traffic.forwarded_from, strict=True)
    assert all(after < number and before < number for number, (after, before) in enumerate(times) if number)


@quick
@given(plans(), st.integers(0, 1000), st.booleans())
def test_no_rank_is_quicker_than_what_it_computes_or_slower_than_everything_one_after_the_other(
    plan: Plan, seed: int, backward: bool
):
    traffic = PlanTraffic.of(plan)
    step_s, kv_s = drawn(plan, seed)
    line = timeline(traffic, step_s, kv_s, 0.5, backward=backward)
    assert np.all(line.end_s >= line.compute_s)
    np.testing.assert_allclose(line.compute_s, step_s.sum(axis=1))
    moved = dense(traffic.kv, plan.world) + dense(traffic.dkv, plan.world) * backward
    assert np.all(line.end_s <= step_s.sum() + (moved * kv_s).sum() + 0.5 * (moved > 0).sum() + 1e-9)
    assert np.all(line.total_s(0.0) == line.end_s)
    assert np.all(line.total_s(1.0) >= line.compute_s + line.moving_s - 1e-9)


@quick
@given(plans(), st.integers(0, 1000), st.booleans())
def test_more_work_or_slower_links_are_never_quicker(plan: Plan, seed: int, backward: bool):
    traffic = PlanTraffic.of(plan)
    step_s, kv_s = drawn(plan, seed)
    rng = np.random.default_rng(seed)
    base = timeline(traffic, step_s, kv_s, 0.5, backward=backward)
    longer = step_s + rng.exponential(5, step_s.shape) * rng.integers(0, 2, step_s.shape)
    slower = kv_s * rng.choice([1.0, 1.5, 4.0], kv_s.shape)
    for changed in (
        timeline(traffic, longer, kv_s, 0.5, backward=backward),
        timeline(traffic, step_s, slower, 0.5, backward=backward),
        timeline(traffic, step_s, kv_s, 0.7, backward=backward),
    ):
        assert np.all(changed.end_s >= base.end_s - 1e-9)
        assert np.all(changed.total_s(0.3) >= base.total_s(0.3) - 1e-9)


@quick
@given(plans(), st.integers(0, 1000))
def test_kernels_that_last_for_ever_hide_all_keys(plan: Plan, seed: int):
    step_s = np.full(plan.step_areas.shape, 1e9)
    forward = timeline(PlanTraffic.of(plan), step_s, drawn(plan, seed)[1], 0.5)
    np.testing.assert_allclose(forward.wait_s, 0, atol=1e-3)
    backward = timeline(PlanTraffic.of(plan), step_s, drawn(plan, seed)[1], 0.5, backward=True)
    assert np.all(backward.wait_s / backward.end_s < 1e-5), "but for the gradients of the last step"


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_messages_a_rank_takes_what_it_computes(schedule: str, backward: bool):
    """Whatever a link costs: ranks that see their own document alone."""
    plan = plan_of("causal_document", 4, SCHEDULES[schedule])
    step_s, kv_s = drawn(plan, 3)
    line = timeline(PlanTraffic.of(plan), step_s, kv_s, 5.0, backward=backward)
    np.testing.assert_array_equal(line.end_s, step_s.sum(axis=1))
    np.testing.assert_array_equal(line.total_s(0.3), line.end_s)
    assert not line.moving_s.any()


def test_one_rank_is_its_kernel():
    for schedule in (Gather(), Ring()):
        plan = plan_of("causal", 1, schedule)
        step_s = np.full((1, plan.num_steps), 0.0)
        step_s[0, 0] = 7.0
        assert timeline(PlanTraffic.of(plan), step_s, even(1, 1.0), 1.0, backward=True).total_s(0.3) == [7.0]


@pytest.mark.parametrize("pair_s", [1e-3, 1.0])
@pytest.mark.parametrize("schedule", ["gather", "ring"])
def test_where_all_ranks_are_alike_it_is_the_estimate_that_chooses(schedule: str, pair_s: float):
    rates = UnitCosts(pair_s, 0.3, end_pairs=0)
    plan = plan_of("full", 4, SCHEDULES[schedule])
    line = timeline(PlanTraffic.of(plan), plan.step_areas * pair_s, even(4, 0.3))
    np.testing.assert_allclose(line.end_s, cost_of(plan, rates).overlapped_s)


@pytest.mark.parametrize("placement", ["contiguous", "heap-256", "stripes"])
@pytest.mark.parametrize("mask", ["causal_document", "full_document", "sliding_window"])
def test_where_ranks_of_a_ring_differ_it_is_too(mask: str, placement: str):
    rates = UnitCosts(1e-3, 0.3, end_pairs=0)
    plan = Ring().plan(whole := build_mask(mask, seqlen=4096, seed=3), make_sharding(placement, whole, 4))
    line = timeline(PlanTraffic.of(plan), plan.step_areas * rates.pair_s, even(4, 0.3))
    np.testing.assert_allclose(line.end_s.max(), cost_of(plan, rates).overlapped_s, rtol=0.02)


def test_two_ranks_by_hand():
    """12 keys each, all of which the other one sees: they arrive after 6 s, half a second of which is the
    message's own."""
    traffic = PlanTraffic.of(plan_of("full", 2, Ring(), seqlen=24))
    kv_s = even(2, 5.5 / 12)
    quick_kernels = np.full((2, 2), 1.0)
    slow_kernels = np.full((2, 2), 10.0)
    line = timeline(traffic, quick_kernels, kv_s, 0.5)
    np.testing.assert_allclose(line.end_s, 6 + 1)
    np.testing.assert_allclose(line.wait_s, 5)
    np.testing.assert_allclose(line.total_s(0.3), 7 + 0.3 * 1, err_msg="1 s of the message is hidden")
    np.testing.assert_allclose(timeline(traffic, slow_kernels, kv_s, 0.5).total_s(0.3), 20 + 0.3 * 6)
    np.testing.assert_allclose(
        timeline(traffic, slow_kernels, kv_s, 0.5, backward=True).end_s,
        20 + 6,
        err_msg="gradients go home last",
    )


def test_a_slow_rank_holds_up_others_only_by_its_buffers():
    """Rank 0 of 4 with two buffers posts step 3 after step 1's kernel: then rank 1 gets its keys, and rank 3
    is rid of its own."""
    plan = plan_of("full", 4, Ring())
    traffic = PlanTraffic.of(plan)
    step_s = np.ones((4, 4))
    step_s[0, 0] = 100.0
    assert traffic.post_after == (-1, -1, -1, 1)
    np.testing.assert_allclose(timeline(traffic, step_s, even(4, 1e-6)).end_s, [103, 102, 4, 101], atol=1e-3)


def test_links_within_and_between_hosts():
    links = LinkSpeeds(intra_node_bytes_per_s=100.0, inter_node_bytes_per_s=10.0, ranks_per_node=2)
    np.testing.assert_allclose(
        links.byte_s(range(3)), [[0.01, 0.01, 0.1], [0.01, 0.01, 0.1], [0.1, 0.1, 0.01]]
    )
    np.testing.assert_allclose(links.byte_s((0, 2)), [[0.01, 0.1], [0.1, 0.01]])
    traffic = PlanTraffic.of(plan_of("full", 2, Ring()))
    near, far = (timeline(traffic, np.ones((2, 2)), links.byte_s(ranks)).end_s for ranks in ((0, 1), (0, 2)))
    assert np.all(far > near)


def test_lanes_do_not_wait_for_each_other():
    """A double ring sends keys of the next window while those of this one go round."""
    traffic = PlanTraffic.of(plan_of("full", 4, Ring(window=2)))
    one_lane = replace(traffic, streams=("", "keys", "keys", "keys"))
    two, first = (timeline(some, np.full((4, 4), 0.1), even(4, 1.0)).end_s for some in (traffic, one_lane))
    assert np.all(two < first)


def test_heads_in_chunks():
    assert head_pipeline([3.0, 2.0], [0.0, 0.0], [0.0, 0.0]) == 5
    assert head_pipeline([3.0], [1.0], [1.5], overlap_slowdown=0.3) == 5.5
    assert head_pipeline([3.0, 3.0], [1.0, 1.0], [1.0, 1.0], overlap_slowdown=0.5) == 1 + 3 + 3 + 1 + 0.5 * 2


@quick
@given(
    st.lists(st.tuples(*[st.floats(0, 10)] * 3), min_size=1, max_size=5),
    st.integers(0, 2),
    st.integers(0, 4),
    st.floats(0, 5),
)
def test_more_of_a_chunk_is_never_quicker(
    chunks: list[tuple[float, float, float]], what: int, which: int, more: float
):
    before = [[chunk[place] for chunk in chunks] for place in range(3)]
    after = [list(column) for column in before]
    after[what][which % len(chunks)] += more
    least_s = head_pipeline(before[0], before[1], before[2])
    assert head_pipeline(after[0], after[1], after[2]) >= least_s - 1e-9
    assert least_s >= sum(before[0])


def test_a_timelines_parts_add_up():
    line = Timeline(np.array([5.0]), np.array([3.0]), np.array([1.0]))
    assert line.wait_s == [2.0]
    assert line.total_s(0.3) == [5.0], "nothing is hidden: no more moves than is waited for"
