"""Plans against rasters: random masks, numbers of ranks, permutations and schedules."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longca.cp.partition.chunked_partition import partition_jointly
from longca.cp.partition.mask_partition import PartitionStack, Step
from longca.cp.partition.mesh import Mesh
from longca.cp.partition.sharding import (
    CANDIDATES,
    TARGET_IMBALANCE,
    ChunkedSharding,
    StripedSharding,
    best_swap,
    make_sharding,
)
from longca.cp.schedule.plan import Plan, Transfer
from longca.cp.schedule.planner import MOST_WORLDS, Planner, UnitCosts, cost_of, costs_of, partition_mask
from longca.cp.schedule.ring_and_gather import Gather, Ring, RingPlan
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from tests.helpers.kernels.masks_for_tests import rasters, uniform_grid
from tests.helpers.masks.strategies import masks, patchworks, quick

PERMUTATIONS = ("contiguous", "zigzag", "stripes", "heap-1", "heap-4", "heap-9", "level-4")
RATES = UnitCosts.of(64, 8, 128)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    mask = draw(st.one_of(masks(max_seqlen=70), patchworks()))
    world = draw(st.integers(1, 6))
    windows = [size for size in range(1, world + 1) if world % size == 0]
    schedule = draw(
        st.one_of(
            st.builds(Gather, st.integers(0, 3)),
            st.builds(Ring, st.sampled_from([None, *windows])),
            st.just(Ring(two_way=True)),
        )
    )
    return schedule.plan(mask, make_sharding(draw(st.sampled_from(PERMUTATIONS)), mask, world))


def positions(plan: Plan, step: Step) -> np.ndarray:
    """Positions of the keys in a step's buffer."""
    return np.concatenate(
        [plan.sharding.positions(source)[first:behind] for source, first, behind in step.keys]
    )


def moved(plan: Plan, rank: int, number: int) -> list[tuple[int, int, int]]:
    """Parts of a rank's KV that come from others."""
    return [part for part in plan.held_kv(rank, number) if part[0] != rank]


def all_steps(plan: Plan) -> list[Step]:
    return [step for rank in range(plan.world) for step in plan.steps(rank)]


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


@pytest.mark.parametrize("name", ["contiguous", "zigzag", "heap-16", "stripes"])
def test_block_masks_stay_block_masks(name: str):
    mask = uniform_grid(128, 16, 16, 2, seed=0)
    plan = Ring().plan(mask, make_sharding(name, mask, 4))
    assert all(step.mask.grid is not None for step in all_steps(plan))


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


def test_zigzag_causal_has_three_bands_in_a_step_at_most():
    mask = build_mask("causal", seqlen=960)
    steps = all_steps(Ring().plan(mask, make_sharding("zigzag", mask, 8)))
    assert max(len(step.mask.bands) for step in steps) == 3
    assert np.ptp([step.area for step in steps if step.number]) == 0


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


def test_masks_of_several_head_groups_are_planned():
    first = build_mask("causal_document", seqlen=512)
    other = build_mask("sliding_window", seqlen=512, window=64)
    mask = Mask(512, 512, (first.bands, other.bands))
    names = {choice.plan.sharding.name for choice in Planner(RATES).choices(mask, 4, Ring())}
    assert names == set(CANDIDATES)
    assert Planner(RATES).plan(mask, 4, Ring()).step_areas.sum() == mask.area


def test_levels_are_not_tried_where_none_can_be_best():
    names = {
        mask: [
            choice.plan.sharding.name
            for choice in Planner(RATES).choices(build_mask(mask, seqlen=8192), 4, Ring())
        ]
        for mask in ("full", "causal", "prefix_lm", "causal_document")
    }
    assert sorted(names["causal_document"]) == sorted(CANDIDATES)
    others = sorted(name for name in CANDIDATES if not name.startswith("level"))
    assert all(sorted(names[mask]) == others for mask in ("full", "causal", "prefix_lm"))


@pytest.mark.parametrize("placement", ["contiguous", "zigzag", "heap-64"])
@pytest.mark.parametrize(
    "mask", ["full", "causal", "causal_document", "full_document", "sliding_window", "causal_sliding_window"]
)
def test_meetings_are_the_rows_that_see_keys_of_a_rank(mask: str, placement: str):
    """The masks have one band at each row."""
    built = build_mask(mask, seqlen=777, **({"window": 40} if "window" in mask else {}))
    cut, seen = (
        partition_mask(built, placed := make_sharding(placement, built, 4)),
        built.dense().reshape(777, 777),
    )
    positions = [placed.positions(rank) for rank in range(4)]
    rows = [[int(seen[np.ix_(mine, theirs)].any(axis=1).sum()) for theirs in positions] for mine in positions]
    np.testing.assert_array_equal(cut.band_rows, rows)


@pytest.mark.parametrize(
    ("mask", "params", "expected"),
    [
        ("full", {}, "contiguous"),
        ("causal", {}, "zigzag"),
        ("causal_sliding_window", {"window": 1024}, "contiguous"),
    ],
)
def test_choices(mask: str, params: dict, expected: str):
    planner = Planner(RATES)
    whole = build_mask(mask, seqlen=8 * 8192, **params)
    for schedule in (Gather(), Ring()):
        assert planner.plan(whole, 8, schedule).sharding.name == expected


def test_costs_hold_compute_and_moves():
    mask = build_mask("causal_document", seqlen=32768)
    for choice in Planner(RATES).choices(mask, 4, Gather()) + Planner(RATES).choices(mask, 4, Ring()):
        cost = choice.cost
        assert (
            max(cost.compute_s, cost.transfer_s) <= cost.overlapped_s * (1 + 1e-12)
            and cost.overlapped_s <= cost.total_s
        )
        if not choice.plan.forwards_kv:
            assert cost.overlapped_s <= cost.total_s <= cost.compute_s + cost.transfer_s
    alone = cost_of(Gather().plan(mask, make_sharding("contiguous", mask, 1)), RATES)
    assert alone.transfer_s == 0
    assert alone.total_s == alone.compute_s > mask.area * RATES.pair_s


def test_planners_keep_plans_of_equal_masks():
    planner = Planner(RATES, kept=2)
    plan = planner.plan(build_mask("causal", seqlen=640), 4, Ring())
    assert planner.plan(build_mask("causal", seqlen=640), 4, Ring()) is plan
    assert planner.plan(build_mask("causal", seqlen=640), 4, Ring(2)) is not plan
    planner.plan(build_mask("full", seqlen=640), 4, Ring())
    assert planner.plan(build_mask("causal", seqlen=640), 4, Ring()) is not plan


def test_schedules_share_what_is_cut_for_the_last_mask():
    planner = Planner(RATES)
    mask = build_mask("causal", seqlen=640)
    cut = planner.plan(mask, 4, Ring(), "zigzag").partition
    assert planner.plan(mask, 4, Gather(), "zigzag").partition is cut
    assert planner.plan(mask, 2, Gather(), "zigzag").partition is not cut
    assert planner.plan(mask, 4, Gather(2), "zigzag").partition is cut, "of the last few numbers of ranks"
    for world in range(2, 2 + MOST_WORLDS):
        planner.plan(mask, world, Gather(0), "zigzag")
    assert planner.plan(mask, 4, Gather(3), "zigzag").partition is not cut


def test_planners_of_strategies_share_partitions():
    planner = Planner(RATES)
    mask = build_mask("causal", seqlen=640)
    other = Planner(UnitCosts.of(8, 8, 64), partitions=planner.partitions)
    assert (
        planner.plan(mask, 4, Ring(), "zigzag").partition is other.plan(mask, 4, Gather(), "zigzag").partition
    )


@pytest.mark.parametrize("world", (2, 3, 16))
def test_partitions_counted_in_one_pass_are_those_counted_alone(world: int):
    for mask in (
        build_mask("causal_document", seqlen=3000, documents=np.array([1, 700, 299, 1990, 10])),
        build_mask("shared_question", seqlen=3000, documents=np.array([1400, 1600])),
        build_mask("sliding_window", seqlen=1003, window=100),
        Mask(100, 100, (as_bands([]),)),
        Mask(100, 100, (as_bands([(3, 9, 5, 60, -INF, 2)]), as_bands([(0, 100, 0, 100, -7, INF)]))),
    ):
        shardings = [
            make_sharding(name, mask, world) for name in ("contiguous", "zigzag", "heap-16", "level-8")
        ]
        assert all(isinstance(sharding, ChunkedSharding) for sharding in shardings)
        for joint, sharding in zip(partition_jointly(mask, shardings), shardings, strict=True):
            alone = partition_mask(mask, sharding)
            for name in ("areas", "band_rows", "num_needed", "needed_hulls"):
                np.testing.assert_array_equal(getattr(joint, name), getattr(alone, name), err_msg=name)


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_mesh_divides_the_tokens_of_a_plan(name: str):
    mesh = Mesh(ring=3, heads=2)
    placement = make_sharding(name, build_mask("causal", seqlen=61), mesh.ring)
    held = [mesh.positions(placement, rank) for rank in range(mesh.world)]
    assert np.array_equal(np.concatenate(held), placement.order)
    assert [list(mesh.group(3)), list(mesh.ring_of(3))] == [[2, 3], [1, 3, 5]]


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


@pytest.mark.parametrize("schedule", [Ring(), Ring(two_way=True), Ring(window=3), Gather(2)])
def test_plans_are_estimated_together_as_alone(schedule: Ring | Gather):
    mask = build_mask("causal_document", seqlen=6 * 512 + 5)
    shardings = [make_sharding(name, mask, 6) for name in ("contiguous", "zigzag", "heap-64", "stripes")]
    partitions = PartitionStack([partition_mask(mask, sharding) for sharding in shardings])
    together = costs_of(schedule.plans_of(partitions), RATES)
    alone = [cost_of(schedule.plan(mask, sharding), RATES) for sharding in shardings]
    assert together == alone and len(set(together)) > 1


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


def test_a_step_without_hidden_pairs_is_one_band():
    """The first of three chunks of keys, seen by all queries of a later rank whose own chunks lie apart."""
    plan = Ring().plan(
        build_mask("causal", seqlen=600), make_sharding("zigzag", build_mask("causal", seqlen=600), 3)
    )
    step = next(step for step in plan.steps(2) if step.number)
    assert step.mask.traits.full and len(step.mask.groups[0]) == 1
    assert step.mask.area == step.area and (step.mask.seqlen_q, step.mask.seqlen_k) == (200, step.num_keys)
