"""The planner: the shardings that it chooses among, their costs, and the plans that it keeps."""

import pytest

from longca.cp.partition.mask_partition import PartitionStack
from longca.cp.partition.sharding import CANDIDATES, make_sharding
from longca.cp.schedule.planner import MOST_WORLDS, Planner, UnitCosts, cost_of, costs_of, partition_mask
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.masks import Mask, build_mask

RATES = UnitCosts.of(64, 8, 128)


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


@pytest.mark.parametrize("schedule", [Ring(), Ring(two_way=True), Ring(window=3), Gather(2)])
def test_plans_are_estimated_together_as_alone(schedule: Ring | Gather):
    mask = build_mask("causal_document", seqlen=6 * 512 + 5)
    shardings = [make_sharding(name, mask, 6) for name in ("contiguous", "zigzag", "heap-64", "stripes")]
    partitions = PartitionStack([partition_mask(mask, sharding) for sharding in shardings])
    together = costs_of(schedule.plans_of(partitions), RATES)
    alone = [cost_of(schedule.plan(mask, sharding), RATES) for sharding in shardings]
    assert together == alone and len(set(together)) > 1
