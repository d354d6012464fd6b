"""The picture that decides: its shares, ties, standings and sentences follow from the records, and its script has the same numbers."""

import json

import pytest

from longca.core.record import OutOfMemory, Samples
from longca.report.decide.cases import cases, num_cases, num_open, standings
from longca.report.decide.views import ALONE, decision, described, verdict, views_json
from longca.store.table import derived
from tests.records import gpu_study, record
from tests.report.test_answers import cell


def timed(kernel, mask, *times, **fields):
    return record(cell(kernel, mask, **fields), samples=Samples(time_ms=(times,), warmup=1, timer="monotonic"))


@pytest.fixture(scope="module")
def small():
    """Two masks at 1K; sdpa and flex tie under causal, naive is alone at 2K and never runs full."""
    records = [timed("sdpa", "causal", 0.9, 1.0, 1.1), timed("flex", "causal", 0.9, 1.05, 1.2), timed("naive", "causal", 4.0, 4.0),
               timed("sdpa", "full", 4.0, 4.0), timed("flex", "full", 2.0, 2.0), timed("naive", "causal", 9.0, seqlen=2048),
               record(cell("naive", "full"), OutOfMemory(requested_bytes=None, where="fwd"))]
    return derived(records)


def test_standings_tell_the_worst_share_and_on_how_many_masks(small):
    found = cases(small[small.seqlen == 1024], "kernel")
    flex, sdpa, naive = standings(found)
    assert [one.method for one in (flex, sdpa, naive)] == ["flex", "sdpa", "naive"]
    assert (flex.num_cases, flex.num_first, flex.where) == (2, 1, "causal") and flex.worst == pytest.approx(1 / 1.05)
    assert (sdpa.num_cases, sdpa.worst, sdpa.where) == (2, pytest.approx(0.5), "full") and naive.num_cases == 1
    assert num_cases(found) == 2 and num_open(found) == 1


def test_the_finding_is_of_the_fullest_setting(small):
    found = decision(small)
    assert found and (found.default.seqlen, found.default.ranks, found.default.direction) == (1024, ALONE, "fwd")
    assert found.finding == (
        "At 1K tokens no kernel is the fastest everywhere: of 2 cases (2 masks), flex on 1, sdpa on 1; in 1 the first two lie within the "
        "noise. Of the 2 that run them all, flex loses least: at its worst it reaches 95 % of the best.")
    assert described(found.default, found) == "1K tokens · forward"


def test_verdicts_name_ties_and_the_lonely(small):
    found = decision(small)
    assert found
    assert verdict(found.default, "full").endswith("2.00 ms, 2.00 times as fast as sdpa.")
    tie = verdict(found.default, "causal")
    assert tie.startswith("A tie of 2 within the noise: sdpa (") and tie.endswith("ms) and flex; then naive at 25 %.")
    alone, = (view for view in found.views if view.seqlen == 2048)
    assert verdict(alone, "causal").startswith("Only naive ran: ") and "nothing to compare" in verdict(alone, "causal")


def test_what_has_no_number_says_why(small):
    found = decision(small)
    assert found and {key: status for key, (status, _) in found.default.missing.items()} == {("full", "naive"): "oom"}


def test_methods_without_any_number_or_rank_are_left_out():
    lost = OutOfMemory(requested_bytes=None, where="fwd")
    table = derived([timed("sdpa", "causal", 1.0, 1.0), timed("flex", "causal", 2.0, 2.0), record(cell("naive", "causal"), lost),
                     record(cell("as_released_flex", "causal"), lost)])
    found = decision(table)
    assert found and set(found.default.missing) == {("causal", "naive")}
    data = json.loads(views_json(found, {cell_id: row for row, cell_id in enumerate(table.cell_id)}))
    assert data["methods"] == ["flex", "sdpa"] and data["views"][0]["missing"] == []


def test_strategies_come_first_where_there_are_as_many():
    def parallel(strategy, world, seqlen, tflops):
        return record(cell("sdpa", seqlen=seqlen, kind="cp", strategy=strategy, world=world), tflops=tflops)

    table = derived([record(cell("sdpa"), tflops=2.0), record(cell("naive"), tflops=1.0), parallel("ulysses", 2, 4096, 9.0),
                     parallel("usp", 2, 4096, 5.0), parallel("usp", 4, 8192, 5.0)])
    found = decision(table)
    assert found and found.default.ranks == "2" and described(found.default, found) == "4K tokens · 2 ranks × 2K · forward"
    assert found.finding == "At 4K tokens on 2 ranks ulysses+sdpa is the fastest strategy in all 1 case (1 mask)."
    assert {view.ranks for view in found.views} == {ALONE, "2", "4"}


def test_a_setting_with_a_comparison_comes_before_larger_ones_without():
    lonely = [record(cell("sdpa", mask, seqlen=seqlen)) for mask in ("full", "causal") for seqlen in (4096, 8192)]
    rivals = [record(cell("sdpa", kind="cp", strategy=strategy, world=2)) for strategy in ("ulysses", "usp")]
    found = decision(derived([*lonely, *rivals]))
    assert found and found.default.ranks == "2" and "the fastest strategy" in found.finding


def test_nothing_to_decide():
    assert decision(derived([])) is None and decision(derived([record(cell(), OutOfMemory(requested_bytes=None, where="fwd"))])) is None
    lone = decision(derived([record(cell())]))
    assert lone and lone.finding == "At 1K tokens no two kernels ran the same: there is nothing to compare."


def test_the_script_has_the_numbers_of_every_view():
    table = derived([entry for entry in gpu_study() if entry.cell.mask in ("full", "causal_document", "sliding_window")])
    found = decision(table)
    assert found
    rows = {cell_id: row for row, cell_id in enumerate(table.cell_id)}
    data = json.loads(views_json(found, rows))
    assert len(data["views"]) == len(found.views) == 16 and data["default"]["seqlen"] == found.default.seqlen
    for view, packed in zip(found.views, data["views"], strict=True):
        assert [data["masks"][mask] for mask in packed["masks"]] == view.masks
        assert [data["methods"][name] for name, *_ in packed["standings"]] == [one.method for one in view.standings]
        for mask, name, tflops, _, _, ms, share, place, _, _, _, row in packed["entries"]:
            entry = view.entries[data["masks"][mask], data["methods"][name]]
            assert (tflops, ms, share, place) == (pytest.approx(entry.tflops, 1e-3), pytest.approx(entry.ms, 1e-3),
                                                  pytest.approx(entry.share, 1e-3), entry.place)
            assert table.method[row] == data["methods"][name] and table["mask"][row] == data["names"][mask]
        for mask in view.masks:
            shares = [entry.share for _, entry in view.ranking(mask)]
            assert shares[0] == 1 and shares == sorted(shares, reverse=True)


def test_colours_tell_the_best_apart():
    found = decision(derived([record(cell("sdpa"), tflops=1.0), record(cell("naive"), tflops=0.1), record(cell("flex"), tflops=0.99)]))
    assert found
    strengths = {method: entry.strength for method, entry in found.default.ranking("causal")}
    assert strengths["sdpa"] == 100 and 90 < strengths["flex"] < 100 and strengths["naive"] == 0
