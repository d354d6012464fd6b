"""Forecasts of strategies: their bytes are the formula's, their times obey their parts, and committed records
agree."""

from dataclasses import replace

import numpy as np
import pytest

from longca.core.hardware import load_hardware
from longca.core.plugin import Registry
from longca.core.schema import CallSpec
from longca.cp.forecast import PASS_EFFICIENCY, CallForecast, DeviceModel, WorkForecast, forecast, links_of
from longca.cp.paper_style_forecast import GATHER, RING, forecast_paper_style
from longca.cp.partition.mesh import Mesh
from longca.cp.schedule import timeline as timeline_module
from longca.cp.schedule.planner import LinkSpeeds
from longca.cp.schedule.ring_and_gather import Ring
from longca.cp.schedule.timeline import WorkTimeline
from longca.cp.schedule.work_partition import WorkPartition, partition_on
from longca.lab.advice.recorded import MeasuredCell, measured_cells
from longca.masks import Mask, build_mask
from longca.predict.fitted import FOLDER, load_fitted
from tests.helpers.committed import committed

FREE = LinkSpeeds(1e30, 1e30, 0.0)
STRATEGIES = ("ring_p2p", "ring_allgather", "usp", "loongtrain", "ulysses")


def call(direction: str = "fwd") -> CallSpec:
    return CallSpec(64, 8, 128, "bf16", direction)  # type: ignore[arg-type]


def device(mask: Mask, direction: str = "fwd") -> DeviceModel:
    model = load_fitted().find("band", direction, mask.traits, 8)
    assert model is not None
    return DeviceModel(model, 4e12, merges=True)


def partition(strategy: str, mask: Mask, world: int, direction: str = "fwd") -> WorkPartition:
    return (
        Registry("strategy")
        .load(strategy)
        .partition_call(mask, call(direction), world, Registry("kernel").load("band"), "cuda")
    )


def made(
    strategy: str, mask: Mask, world: int, direction: str = "fwd", links: LinkSpeeds | None = None
) -> CallForecast:
    return forecast(
        partition(strategy, mask, world, direction),
        call(direction),
        device(mask, direction),
        links or LinkSpeeds(),
    )


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_are_those_of_the_studys_formula(strategy: str, direction: str):
    mask = build_mask("full", seqlen=16384)
    world = 8
    mesh = partition(strategy, mask, world, direction).mesh
    actual = made(strategy, mask, world, direction)
    heads = (mesh.heads - 1) / (mesh.ring * mesh.heads**2) * 72
    ring = (mesh.ring - 1) / world * 8 * (2 if direction == "bwd" else 1)
    assert actual.sent_bytes == pytest.approx(16384 * 128 * 2 * 2 * (heads + ring))
    assert actual.inter_node_bytes == 0
    assert made(strategy, mask, world, direction, LinkSpeeds(ranks_per_node=4)).inter_node_bytes > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_messages_that_take_no_time_leave_kernels_and_slow_ones_only_add(strategy: str):
    for name in ("causal", "causal_document"):
        mask = build_mask(name, seqlen=65536, corpus="prolong64k" if "document" in name else None)
        for direction in ("fwd", "bwd"):
            free, usual, slow = (
                made(strategy, mask, 8, direction, links)
                for links in (FREE, LinkSpeeds(), LinkSpeeds(2e9, 2e9, 1e-3))
            )
            assert free.seconds <= usual.seconds < slow.seconds and free.exposed == pytest.approx(0, abs=1e-9)
            assert 0 <= usual.exposed < slow.exposed < 1 and 0 <= usual.imbalance < 1
            alone = device(mask, direction).kernel
            single = alone.seconds(mask, 64, 8)
            assert single / 8 * 0.8 < free.seconds < single / 8 * 2.2


def test_parts_of_a_mask_cost_what_the_whole_costs():
    """Tiles of steps are reckoned from the ends of their rows: of a sharding that cuts no tile, they add up
    to the whole mask's."""
    mask = build_mask("sliding_window", seqlen=32768)
    work = partition_on(Mesh(4), Ring().plan(mask, partition("ring_p2p", mask, 4).plan.sharding), call())
    prediction = forecast(work, call(), device(mask), FREE)
    whole = device(mask).kernel.seconds(mask, 64, 8)
    assert prediction.times.compute_s.sum() == pytest.approx(whole, rel=0.12)


def test_a_forecast_serves_all_speeds_of_messages():
    mask = build_mask("causal_document", seqlen=131072, corpus="prolong64k")
    for strategy in STRATEGIES:
        work = partition(strategy, mask, 16)
        once = WorkForecast(work, call(), device(mask), packs=False)
        for links in (LinkSpeeds(), LinkSpeeds(2e9, 1e9, 1e-3), LinkSpeeds(ranks_per_node=4)):
            first = once.at(links)
            other = forecast(work, call(), device(mask), links)
            assert (
                first.seconds == other.seconds
                and first.inter_node_bytes == other.inter_node_bytes
                and first.exposed == other.exposed
            )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_several_speeds_at_once_are_each_of_them_alone(strategy: str, direction: str):
    work = partition(
        strategy, build_mask("causal_document", seqlen=131072, corpus="prolong64k"), 16, direction
    )
    step_s = np.random.default_rng(0).random((work.mesh.ring, work.plan.num_steps))
    steps = {
        (place, head): step_s
        for place, chunk in enumerate(work.chunks)
        for head, heads in enumerate(chunk.q)
        if heads
    }
    line = WorkTimeline(work, call(direction), steps, backward=direction == "bwd")
    speeds = [
        LinkSpeeds(),
        LinkSpeeds(inter_node_bytes_per_s=1e9, inter_node_message_s=1e-3),
        LinkSpeeds(1e9, 1e8, overlap_slowdown=0.5),
        LinkSpeeds(ranks_per_node=4),
    ]
    for links, together in zip(speeds, line.at_each(speeds), strict=True):
        alone = line.at(links)
        for name in ("compute_s", "free_s", "total_s"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


@pytest.mark.parametrize(("strategy", "rings"), [("usp", 8), ("ring_p2p", 1)])
def test_ranks_with_equal_work_are_reckoned_once_and_alike(
    strategy: str, rings: int, monkeypatch: pytest.MonkeyPatch
):
    mask = build_mask("causal_document", seqlen=131072, corpus="prolong64k")
    work = partition(strategy, mask, 16, "bwd")
    step_s = np.random.default_rng(0).random((16 // rings, 16 // rings))
    seen = list[object]()
    assert work.mesh.heads == rings
    places = [
        (place, head)
        for place in range(len(work.chunks))
        for head in range(rings)
        if work.chunks[place].q[head]
    ]
    own_timeline = timeline_module.timeline
    monkeypatch.setattr(
        timeline_module,
        "timeline",
        lambda *given, **named: (seen.append(given), own_timeline(*given, **named))[1],
    )
    links = LinkSpeeds(ranks_per_node=8)
    shared = dict.fromkeys(places, step_s)
    apart = {key: step_s.copy() for key in places}
    first = WorkTimeline(work, call("bwd"), shared, backward=True).at(links)
    count = len(seen)
    other = WorkTimeline(work, call("bwd"), apart, backward=True).at(links)
    assert count == len({len(work.chunks[place].heads.ranks[head].kv) for place, head in places})
    assert len(seen) - count == len(places)
    np.testing.assert_array_equal(first.total_s, other.total_s)
    np.testing.assert_array_equal(first.free_s, other.free_s)


@pytest.mark.parametrize("strategy", [RING, GATHER])
def test_the_studys_schedules_move_padded_keys(strategy: str):
    mask = build_mask("causal", seqlen=65536)
    prediction = forecast_paper_style(strategy, mask, call(), 4, device(mask), LinkSpeeds())
    assert prediction.sent_bytes == 3 * 2 * 16384 * 8 * 128 * 2
    assert prediction.seconds > forecast_paper_style(strategy, mask, call(), 4, device(mask), FREE).seconds


def test_records_of_several_gpus_agree():
    cells = measured_cells(committed("h100-cp", step=5, world=[2], strategy=["ring_p2p", "usp", RING]))
    hardware = load_hardware()
    fitted = load_fitted(FOLDER / "h100.json")
    networks = {network.name: links_of(network) for network in hardware.networks}
    bandwidth = hardware.bandwidth_gb_s(fitted.device)
    assert bandwidth is not None

    def error(cell: MeasuredCell) -> float:
        model = cell.device(fitted, bandwidth * 1e9 * PASS_EFFICIENCY)
        assert model is not None
        return cell.seconds / cell.forecast_s(model, networks[cell.profile]) - 1

    errors = np.abs([error(cell) for cell in cells])
    assert len(errors) > 20 and np.median(errors) < 0.05 and np.quantile(errors, 0.9) < 0.15


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_collective_over_nodes_uses_all_adapters_of_a_node(direction: str):
    """Eight adapters bring the shards of the other eight ranks into a node, each an eighth; a ring's hop has
    one adapter to itself."""
    mask = build_mask("causal", seqlen=131072)
    links = LinkSpeeds(1e12, 1e9, 0.0, 0.0, 0.0, 8)
    quick = replace(links, intra_node_bytes_per_s=np.inf, inter_node_bytes_per_s=np.inf)
    shard = 2 * 8192 * 8 * 128 * 2
    ways = 1 if direction == "fwd" else 2
    slow, free = (
        forecast_paper_style(GATHER, mask, call(direction), 16, device(mask, direction), entry)
        for entry in (links, quick)
    )
    assert (
        slow.seconds - free.seconds == pytest.approx(ways * 8 / 8 * shard / 1e9)
        and slow.inter_node_bytes == ways * shard
    )
    ring = forecast_paper_style(RING, mask, call(direction), 16, device(mask, direction), links)
    assert ring.seconds > 15 * shard / 1e9, "each of its hops crosses nodes on some rank, and all wait for it"
