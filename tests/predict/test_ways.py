"""Ways of single kernels: the rules are those of the kernels, and records agree with them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from longca.core.schema import CallSpec
from longca.cp.forecast import DeviceModel, WorkForecast
from longca.cp.schedule.planner import LinkSpeeds
from longca.lab.advice.recorded import measured_cells
from longca.lab.studies import Record
from longca.lab.studies.fitting import CallsToFit, fits, has_rests, is_earlier, samples
from longca.masks import Mask, build_mask
from longca.ops.band import plan as band_plan
from longca.ops.band.tables.backward_rule import AddOrder, preferred_dq_order
from longca.predict import kernel
from longca.predict.fit import FEWEST
from longca.predict.fitted import CallModel, load_fitted
from longca.predict.kernel import (
    PROGRAMS,
    Items,
    TileShape,
    WorkSpread,
    amounts,
    covers_all,
    items_of,
    tile_statistics,
    way_of,
)
from tests.helpers.committed import committed

NAMES = (
    "full",
    "causal",
    "prefix_lm",
    "causal_blockwise",
    "sliding_window",
    "global_sliding_window",
    "full_document",
    "block_sparse_uniform",
)


def made(name: str, seqlen: int, **params: Any) -> Mask:
    return build_mask(
        name,
        seqlen=seqlen,
        corpus="prolong64k" if "document" in name or "blockwise" in name else None,
        **params,
    )


WAY_OF_ORDER = {
    None: kernel.TWO_KERNELS,
    AddOrder.FROM_LAST: kernel.FROM_LAST,
    AddOrder.FROM_FIRST: kernel.FROM_FIRST,
}


@pytest.mark.parametrize("name", NAMES)
def test_bands_way_backward_is_that_of_its_operator(name: str):
    chosen = set()
    for seqlen in (2048, 8192, 16384, 32768):
        mask = made(name, seqlen, **({"window": 4096} if name == "sliding_window" else {}))
        parts = (
            [mask]
            if mask.grid is not None
            else [
                mask,
                *(
                    mask.crop(*sides)
                    for sides in (
                        ((0, seqlen // 2), (0, seqlen)),
                        ((seqlen // 2, seqlen), (0, seqlen)),
                        ((0, seqlen), (0, seqlen // 2)),
                    )
                ),
            ]
        )
        for part in parts:
            for num_kv in (1, 2, 8):
                chosen.add(order := preferred_dq_order(part, num_kv))
                assert way_of("band", "bwd", part, num_kv) == WAY_OF_ORDER[order], (seqlen, num_kv)
    assert len(chosen) > 1 or name in ("block_sparse_uniform", "full_document"), "every way is met"
    assert PROGRAMS / kernel.OWN_MOST == band_plan.RESIDENT_PROGRAMS
    assert way_of("band", "fwd", made("full", 8192), 8) == way_of("fa4", "bwd", made("full", 8192), 8) == ""


def test_the_ways_differ_and_each_has_its_model():
    call = load_fitted().find("band", "bwd", made("full", 8192).traits, 8)
    assert call is not None and {model.way for model in call.ways} == {
        kernel.FROM_LAST,
        kernel.FROM_FIRST,
        kernel.TWO_KERNELS,
    }
    assert [call.for_call(made("full", seqlen), 8).way for seqlen in (65536, 8192, 1024)] == [
        kernel.FROM_LAST,
        kernel.FROM_FIRST,
        kernel.TWO_KERNELS,
    ]


def cells_of(records: Iterable[Record]) -> list[tuple[str, bool]]:
    """The cell of each record, and whether its calls had rests."""
    return [(record.cell_id, has_rests(record)) for record in records]


def test_records_of_earlier_kernels_are_neither_fitted_nor_predicted():
    """Some records of context parallelism on H200s are of `band` as it was before."""
    records = committed("h200-cp", kernel=["band", "fa3"], mask=["causal", "full"])
    actual = CallsToFit(records).records()
    cells = measured_cells(records)
    assert {record.cell.kernel for record in records if is_earlier(record)} == {"band"}
    assert actual and not any(map(is_earlier, actual))
    assert not any(is_earlier(cell.record) for cell in cells)
    assert "fa3" in {cell.record.cell.kernel for cell in cells}
    present = committed(
        "h200-dense", kernel=["band"], mask=["causal", "full"], num_q_heads=[64], num_kv_heads=[8], seed=[0]
    )
    calls = CallsToFit(present)
    of_one_protocol = [record for record in present if has_rests(record) == calls.rests]
    assert cells_of(calls.records()) == cells_of(of_one_protocol) and not any(map(is_earlier, present))
    assert {one.way for one in samples(present)} == {
        "",
        kernel.FROM_LAST,
        kernel.FROM_FIRST,
        kernel.TWO_KERNELS,
    }


def test_parts_of_a_mask_have_ways_by_their_own_sizes():
    mask = made("causal", 65536)
    areas = np.array([mask.area, mask.area / 4, 0.0])
    found = kernel.ways_of_parts(
        mask, areas, np.array([65536, 16384, 16384]), np.array([65536, 16384, 16384]), 8
    )
    assert found.tolist() == [kernel.FROM_LAST, kernel.FROM_FIRST, kernel.TWO_KERNELS]


def test_a_window_that_looks_ahead_is_covered_whole_by_cudnns_graph_backward():
    both = made("sliding_window", 8192)
    back = made("causal_sliding_window", 8192)
    assert covers_all("cudnn_graph", "bwd", both.traits)
    assert not covers_all("cudnn_graph", "bwd", back.traits) and not covers_all(
        "cudnn_graph", "fwd", both.traits
    )
    assert not covers_all("fa3", "bwd", both.traits)
    full = load_fitted().find("cudnn_graph", "bwd", both.traits, 8)
    assert full is not None and full.residuals.p95 < 0.25  # 6.7 before the rule
    assert full.seconds(both, 64, 8) > 3 * full.seconds(back, 64, 8)


def simulated(pairs: np.ndarray, copies: int, *, in_order: bool) -> float:
    """Pairs for which multiprocessors are idle, where each takes the next item when it is free."""
    items = np.tile(pairs, copies) if in_order else np.sort(np.repeat(pairs, copies))[::-1]
    free = np.zeros(PROGRAMS)
    for item in items:
        free[free.argmin()] += item
    return float(free.max() * PROGRAMS - items.sum())


@pytest.mark.parametrize(
    "pairs", [np.full(296, 7.0), np.arange(1, 129.0), np.r_[np.full(4, 500.0), np.full(124, 60.0)]]
)
def test_idle_multiprocessors_are_those_of_a_schedule(pairs: np.ndarray):
    for copies in (1, 2, 8):
        assert WorkSpread.of(pairs).idle(copies) <= simulated(pairs, copies, in_order=False) + 1e-6
        total = pairs.sum() * copies
        assert WorkSpread.of(pairs).idle(copies) == pytest.approx(
            simulated(pairs, copies, in_order=False), abs=0.12 * total + pairs.max()
        )
    causal = np.arange(1, 129.0)
    assert WorkSpread.of(causal).idle(8, in_order=True) == pytest.approx(
        simulated(causal, 8, in_order=True), rel=0.35
    )
    assert WorkSpread.of(np.r_[np.full(4, 500.0), np.full(124, 60.0)]).idle(2, most=0.5) < WorkSpread.of(
        np.r_[np.full(4, 500.0), np.full(124, 60.0)]
    ).idle(2)


def test_tiles_that_begin_anew_with_each_block():
    mask = made("block_sparse_uniform", 4096, density=0.5, block=64)
    anew, through = (
        tile_statistics(mask, TileShape(128, 64, per_block=per_block), 1) for per_block in (True, False)
    )
    assert anew.full == pytest.approx(2 * mask.area / mask.num_groups, rel=0.1) and anew.partial == 0
    assert through.area == anew.area and through.computed < anew.computed
    assert anew.of_rows.pairs.sum() == pytest.approx(anew.of_columns.pairs.sum())
    covered = amounts(through, TileShape(128, 64), Items(by_keys=True, all_heads=False), 8, 8, covered=True)
    assert covered[0] * 1e6 >= 4096 * 4096 * 8 and covered[2] == 0


def test_items_of_a_call_with_few_heads_leave_multiprocessors_idle():
    """Under global tokens a few columns are long: with 2 KV heads, work tiles of `band` take three rounds
    where two and a bit would do."""
    mask = made("global_sliding_window", 16384, num_global=512, window=1024)
    shape = TileShape(128, 128, 16)
    items = items_of("band", "bwd", kernel.TWO_KERNELS)
    few, many = (
        amounts(tile_statistics(mask, shape, 8), shape, items, heads, heads // 8)[0] / heads
        for heads in (16, 64)
    )
    assert few > 1.1 * many


def test_steps_take_the_way_of_their_own_masks():
    from longca.core.plugin import Registry
    from longca.cp.schedule.planner import step_masks

    mask = made("causal", 32768)
    call = load_fitted().find("band", "bwd", mask.traits, 8)
    assert call is not None
    work = (
        Registry("strategy")
        .load("ring_p2p")
        .partition_call(mask, CallSpec(64, 8, 128, "bf16", "bwd"), 4, Registry("kernel").load("band"), "cuda")
    )
    exact = {way_of("band", "bwd", part, 8) for _, _, part in step_masks(work.plan, 3, merging=True).values()}
    assert exact == {kernel.FROM_FIRST}
    slow = CallModel(
        tuple(
            model if model.way == kernel.FROM_FIRST else CallModel((model,)).scaled(100, "records", 1).usual
            for model in call.ways
        )
    )
    usual, same = (
        WorkForecast(work, CallSpec(64, 8, 128, "bf16", "bwd"), DeviceModel(entry, 4e12, True), packs=False)
        for entry in (call, slow)
    )
    np.testing.assert_array_equal(usual.times(LinkSpeeds()).compute_s, same.times(LinkSpeeds()).compute_s)


def test_records_with_rests_are_not_put_into_a_fit_of_records_without():
    """One protocol for each kernel: that of most records, or else the one that it has enough records of."""
    kept = committed("h200-dense", kernel=["fa3"], mask=["causal", "full"], direction=["fwd"])
    without = [
        record.model_copy(update={"samples": record.samples.model_copy(update={"duty": None})})
        for record in kept
        if fits(record)
    ]
    rested = [
        record.model_copy(update={"samples": record.samples.model_copy(update={"duty": 0.5})})
        for record in without
    ]
    assert len(without) >= 2 * FEWEST
    mixed = CallsToFit([*without, *rested[:5]])
    assert cells_of(mixed.records()) == cells_of(without), "mixed, the fit would be of neither"
    other = [
        record.model_copy(update={"cell": record.cell.model_copy(update={"kernel": "fa4"})})
        for record in rested[:FEWEST]
    ]
    both = CallsToFit([*without, *other])
    assert cells_of(both.records()) == cells_of([*without, *other]), (
        "a kernel with records of the other protocol alone keeps them"
    )
    assert both.other_protocol == {"fa4 fwd"} and not mixed.rests and CallsToFit(rested).rests


def test_a_call_with_many_seeds_is_fitted_on_its_lowest_ones():
    """Whatever the order of records; and of each no more is kept than a fit looks at."""
    first = next(
        record for record in committed("h200-dense", kernel=["fa3"], direction=["fwd"]) if fits(record)
    )
    seeds = [5, 2, 9, 2, 0, 7]
    records = [
        first.model_copy(update={"cell": first.cell.model_copy(update={"seed": seed})}) for seed in seeds
    ]
    kept = CallsToFit(records).records()
    assert [record.cell.seed for record in kept] == [5, 2, 2, 0]
    assert all(len(record.samples.time_ms[0]) == 1 and record.accuracy is None for record in kept)
    whole = samples(each for each in records if each.cell.seed < 6)
    assert [sample.seconds for sample in samples(kept)] == [sample.seconds for sample in whole]
