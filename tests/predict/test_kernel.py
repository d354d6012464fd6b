"""Models of kernels: the tiles that they count, the fit, and that the committed models are those of the
committed records."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from longca.core.errors import UserError
from longca.lab.store.load import load
from longca.lab.studies.fitting import CallsToFit, fit_records, fits, samples
from longca.masks import Mask, build_mask
from longca.predict import kernel as statistics_module
from longca.predict.fit import FEWEST, SHAPES, Sample, at_full_clock, fit_forms, fit_kernel, non_negative
from longca.predict.fitted import FOLDER, CallModel, Interval, clock_slowdown, load_fitted
from longca.predict.kernel import FEATURES, Items, TileShape, amounts, tile_statistics
from tests.helpers.committed import committed
from tests.helpers.kernels.masks_for_tests import rasters
from tests.helpers.masks.strategies import masks, quick
from tests.helpers.support import ROOT
from tools.fitted import RECORDS

LABELS = {"plain": "masked", "rows": "short", "heads": "grouped", "lists": "listed", "blocks": "bands"}
ITEMS = Items(by_keys=False, all_heads=False)


@quick
@given(masks(max_seqlen=70))
def test_tiles_are_those_of_the_raster(mask: Mask):
    statistics = tile_statistics(mask, TileShape(16, 8, 4), 4)
    raster = np.asarray(rasters(mask), dtype=bool)[:2]
    full = partial = 0
    for group in raster:
        for row in range(0, mask.seqlen_q, 4):
            for column in range(0, mask.seqlen_k, 8):
                tile = group[row : row + 4, column : column + 8]
                full = full + bool(tile.all())
                partial = partial + bool(tile.any() and not tile.all())
    assert (statistics.full * len(raster), statistics.partial * len(raster)) == (32 * full, 32 * partial)
    assert statistics.area <= statistics.computed + 1e-9 and 0 <= statistics.waste < 1


def test_pieces_tell_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    mask = build_mask("causal_document", seqlen=65536, corpus="prolong64k")
    shape = TileShape(128, 128, 16)
    whole = tile_statistics(mask, shape, 8)
    monkeypatch.setattr(statistics_module, "MOST_ROWS", 32768)
    pieces = tile_statistics(mask, shape, 8)
    assert pieces != whole and pieces.area == whole.area
    assert pieces.computed == pytest.approx(whole.computed, rel=0.02) and pieces.partial == pytest.approx(
        whole.partial, rel=0.25
    )


@pytest.mark.parametrize("shape", [TileShape(128, 128, 16), TileShape(192, 128)])
def test_pieces_are_counted_together_as_alone(shape: TileShape, monkeypatch: pytest.MonkeyPatch):
    """Also where tiles would reach from one piece into the next."""
    mask = build_mask("causal_document", seqlen=65536, corpus="prolong64k")
    monkeypatch.setattr(statistics_module, "MOST_ROWS", 16384)
    starts = np.linspace(0, mask.seqlen_q - 4096, 4).astype(int) // 4096 * 4096
    alone = [
        tile_statistics(mask.crop((start, start + 4096), (0, mask.seqlen_k)), shape, 8)
        for start in starts.tolist()
    ]
    statistics = tile_statistics(mask, shape, 8)
    scale = mask.area / sum(piece.area for piece in alone)
    assert (statistics.full, statistics.partial) == (
        sum(piece.full for piece in alone) * scale,
        sum(piece.partial for piece in alone) * scale,
    )
    assert statistics.of_rows.pairs.tolist() == sorted(
        (pairs for piece in alone for pairs in piece.of_rows.pairs.tolist()), reverse=True
    )
    assert statistics.of_rows.last == alone[-1].of_rows.pairs[-1]


def test_least_squares_without_negative_costs_are_the_best_of_all_sets_of_columns():
    rng = np.random.default_rng(0)
    for _ in range(30):
        matrix = rng.random((20, 4)) * rng.choice([1e-3, 1, 1e3], 4)
        target = matrix @ rng.normal(0, 1, 4) + rng.normal(0, 0.1, 20)
        x, miss = non_negative(matrix, target)
        best = float(target @ target)
        for chosen in (list(some) for size in range(1, 5) for some in combinations(range(4), size)):
            y = np.zeros(4)
            y[chosen] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            best = min(best, float(np.square(matrix @ y - target).sum())) if (y >= 0).all() else best
        assert (x >= 0).all() and miss == pytest.approx(best, rel=1e-6)


def test_the_clock_slows_long_calls_down_and_back():
    boosted = np.array([1e-4, 5e-3, 1e-2, 0.5])
    taken = boosted * clock_slowdown(boosted, 0.15)
    assert (
        taken[0] == boosted[0]
        and taken[3] == pytest.approx(0.5 * 1.15)
        and boosted[2] < taken[2] < boosted[2] * 1.15
    )
    np.testing.assert_allclose(at_full_clock(taken, 0.15), boosted, rtol=1e-9)


@pytest.fixture(scope="module")
def made() -> list[Sample]:
    """Calls of a kernel with tiles of 128 × 128, known costs and a throttle of 14 %."""
    costs = np.array([1e-3, 1e-3, 0, 0, 0.2, 0.03]) / 1e3
    samples = []
    for name in ("full", "causal", "sliding_window", "causal_document"):
        for seqlen in (2048, 4096, 8192, 16384):
            mask = build_mask(name, seqlen=seqlen, corpus="prolong64k" if "document" in name else None)
            all_amounts = tuple(
                amounts(tile_statistics(mask, shape, 8), shape, ITEMS, 64, 8) for shape in SHAPES
            )
            at_boost = float(all_amounts[0] @ costs)
            samples.append(
                Sample(all_amounts, at_boost * float(clock_slowdown(at_boost, 0.14)), name, seqlen, LABELS)
            )
    return samples


def test_a_fit_finds_the_kernel_that_made_the_times(made: list[Sample]):
    model = fit_kernel("made", "fwd", made)
    assert (
        model.shape == SHAPES[0]
        and model.throttle == 0.14
        and model.by_mask.median < 1e-6
        and model.by_length.median < 1e-6
    )
    mask = build_mask("prefix_lm", seqlen=12288)
    own = float(
        amounts(tile_statistics(mask, SHAPES[0], 8), SHAPES[0], ITEMS, 64, 8)
        @ np.array([1e-6, 1e-6, 0, 0, 2e-4, 3e-5])
    )
    assert CallModel((model,)).seconds(mask, 64, 8) == pytest.approx(
        own * float(clock_slowdown(own, 0.14)), rel=1e-6
    )
    with pytest.raises(ValueError, match="at least 12"):
        fit_kernel("made", "fwd", made[:5])


def test_heads_that_share_a_kv_head_cost_nothing_of_their_own_where_all_calls_have_as_many(
    made: list[Sample],
):
    """Else computed pairs could cost nothing and shared ones everything, and a call of fewer heads a KV head
    would cost too much."""
    alike = fit_kernel("made", "fwd", [replace(entry, heads_per_kv=8) for entry in made], judged=False)
    assert alike.costs_ms["unshared"] == 0 and alike.costs_ms["computed"] == pytest.approx(1e-3, rel=1e-3)
    for model in load_fitted().models:
        assert model.costs_ms["computed"] > 0, model.kernel


def test_calls_of_two_kinds_are_fitted_apart_where_they_differ(made: list[Sample]):
    assert [model.form for model in fit_forms("made", "fwd", made, judged=False)] == [("bands",)]
    slow = [
        Sample(entry.amounts, 3 * entry.seconds, entry.mask, entry.seqlen, LABELS | {"heads": "equal"})
        for entry in made
    ]
    models = fit_forms("made", "fwd", made + slow, judged=False)
    assert {model.form for model in models} == {("grouped", "bands"), ("equal", "bands")}, "none has blocks"
    assert all(model.by_mask.median < 0.01 for model in models)


def test_intervals_hold_their_share_and_widen_about_their_centre():
    interval = Interval.of(np.linspace(-0.1, 0.3, 1001), 0.9)
    assert (interval.low, interval.high) == pytest.approx((-0.08, 0.28))
    wider = interval.widened(2)
    assert (wider.low, wider.high) == pytest.approx((-0.26, 0.46))


def test_the_committed_models_are_those_of_the_records():
    records = [record for record in committed("h200-dense", kernel=["fa1"]) if fits(record)]
    known = {model.direction: model for model in load_fitted().models if model.kernel == "fa1"}
    for direction, other in known.items():
        here = [record for record in records if record.cell.direction == direction]
        first = fit_kernel("fa1", direction, samples(here), judged=False)
        assert first.shape == other.shape and other.by_mask.num_records == len(here)
        assert [other.costs_ms[name] for name in FEATURES] == pytest.approx(
            [first.costs_ms[name] for name in FEATURES], rel=1e-3, abs=1e-9
        )


@pytest.mark.parametrize("device", sorted(RECORDS))
def test_no_committed_model_is_older_than_the_records(device: str):
    """Every kernel is fitted on as many records, of one protocol, as are committed: else `python -m
    tools.fitted` is due."""
    records = load(*(ROOT / f"reports/{device}/{name}.parquet" for name in RECORDS[device])).records
    calls = CallsToFit(records)
    counts = Counter((record.cell.kernel, record.cell.direction) for record in calls.records())
    fitted = load_fitted(FOLDER / f"{device}.json")
    known = Counter[tuple[str, str]]()
    for model in fitted.models:
        known[model.kernel, model.direction] += model.by_mask.num_records
    assert fitted.rests == calls.rests and known.keys() == {
        key for key, count in counts.items() if count >= FEWEST
    }
    # of an algorithm with too few records there is no model
    assert all(0 <= counts[key] - number < FEWEST for key, number in known.items())


def test_records_that_fit_nothing(tmp_path):
    with pytest.raises(UserError, match="no records to fit"):
        fit_records([])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match="holds no fitted kernels"):
        load_fitted(tmp_path / "bad.json")
