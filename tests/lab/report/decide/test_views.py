"""Views: their findings, verdicts, default settings and sentences follow from the records."""

import json
import re

import pandas as pd
import pytest

from longca.lab.report.answers import tiles
from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data
from longca.lab.report.decide.heat_map import ALONE
from longca.lab.report.decide.script import described, views_json
from longca.lab.report.decide.views import ASIDE, decision
from longca.lab.report.rates import rate_points
from longca.lab.report.series import Unit, labelled
from longca.lab.report.winners import Winner, rankings
from longca.lab.store.table import derived
from longca.lab.studies.outcome import OutOfMemory
from longca.lab.studies.record import Samples
from tests.helpers.records import record
from tests.helpers.report.cases import cell, repeated, timed

UNIT = Unit(1.0, "TFLOP/s")


def test_the_finding_is_of_the_fullest_setting(small):
    decided = decision(small)
    assert decided and (decided.default.seqlen, decided.default.ranks, decided.default.direction) == (
        1024,
        ALONE,
        "fwd",
    )
    assert decided.finding == (
        "At 1K tokens on Example CPU @ 2.1 GHz flex leads alone in 1 of 2 cases (2 masks); in 1 no kernel "
        "leads alone. No case was played "
        "off. Of the 2 that ran them all, flex loses least (1 could not run some): at its worst it reaches "
        "97 % of the best."
    )
    assert described(decided.default, decided) == "1K tokens · forward"


def test_verdicts_name_ties_and_the_lonely(small):
    decided = decision(small)
    assert decided
    verdicts = decided.default.verdicts
    assert re.search(
        r"2.00 ms, 2.00 times as fast as sdpa. One device in one run, not played off.$", verdicts["full"]
    )
    assert (
        verdicts["causal"].startswith("A tie of 2 in front: sdpa (")
        and "ms) and flex; then naive at 25 %." in verdicts["causal"]
    )
    (alone,) = (view for view in decided.views if view.seqlen == 2048)
    assert (
        alone.verdicts["causal"].startswith("Only naive ran: ")
        and "nothing to compare" in alone.verdicts["causal"]
    )


def test_what_has_no_number_says_why(small):
    decided = decision(small)
    assert decided and {key: status for key, (status, _) in decided.default.missing.items()} == {
        ("full", "naive"): "oom"
    }


def test_a_mask_in_the_papers_definition_counts_only_where_there_is_no_other():
    table = derived(repeated())
    decided = decision(table)
    assert decided and decided.finding.endswith(
        "flex leads alone in all 1 case (1 mask). No case was played off."
    )
    view = decided.default
    assert (
        view.masks == ["full_document", "full_document · paper compat"]
        and view.num_counted == 1
        and view.has_repeats
    )
    assert [(column.method, column.ran_all, column.share) for column in view.columns] == [
        ("flex", True, 1.0),
        ("sdpa", True, pytest.approx(0.5)),
        ("naive", False, None),
    ], "it has its column all the same"
    assert view.entries["full_document · paper compat", "naive"].share == 1
    (packed,) = json.loads(
        views_json(decided, {cell_id: row for row, cell_id in enumerate(table.cell_id)}, UNIT)
    )["views"]
    assert packed["columns"][2][1:4] == ["–", "0 of 1", 0]
    alone = decision(derived(repeated()[2:]))
    assert alone and not alone.default.has_repeats and "naive leads alone" in alone.finding


@pytest.mark.usefixtures("no_figures")
def test_the_first_mask_that_is_asked_about_has_a_comparison(tmp_path):
    """full comes first in the map, but sdpa is alone there."""
    records = [
        timed("sdpa", "full", 1.0, 1.0),
        timed("sdpa", "causal", 4.0, 4.0),
        timed("flex", "causal", 1.0, 1.0),
    ]
    view = decision(derived(records)).default
    assert (view.masks, view.opening) == (["full", "causal"], "causal")
    text = build(records, [], tmp_path / "page.html", study_title="x").read_text(encoding="utf-8")
    assert "<option>causal</option>" in text and "flex is first of 2: " in text
    assert page_data(text, "views")["default"]["mask"] == "causal"
    assert decision(derived(records[:1])).default.opening == "full"


def test_the_finding_counts_what_was_compared():
    """Two masks forward, one of them backward: it is told that not all have both; what one kernel ran alone
    is no case."""
    records = [
        timed(kernel, mask, time, time, direction=direction)
        for kernel, time in (("flex", 1.0), ("sdpa", 2.0))
        for mask, direction in (("causal", "fwd"), ("causal", "bwd"), ("full", "fwd"))
    ]
    decided = decision(derived(records))
    assert decided and "in all 3 cases (2 masks, not all of them in both directions)" in decided.finding
    decided = decision(
        derived(
            [*records, timed("sdpa", "full", 1.0, 1.0, direction="bwd"), timed("sdpa", "prefix_lm", 1.0, 1.0)]
        )
    )
    assert decided and decided.finding.endswith(
        "flex leads alone in all 3 cases (2 masks, not all of them in both directions). No case was played "
        "off."
    )


def test_a_study_of_rows_as_released_says_that_they_are_never_ranked():
    released = [timed("as_released_flex", "causal", 1.0, 1.0)]
    decided = decision(
        derived([timed("flex", "causal", 1.0, 1.0), timed("sdpa", "causal", 2.0, 2.0), *released])
    )
    assert (
        decided
        and decided.finding.startswith("Of 1 call that runs both as released and without the defect")
        and ". At 1K tokens" in decided.finding
        and "flex leads alone" in decided.finding
        and decided.finding.endswith(f" {ASIDE}")
    )


def test_strategies_come_first_where_there_are_as_many():
    def parallel(strategy, world, seqlen, tflops):
        return record(cell("sdpa", seqlen=seqlen, kind="cp", strategy=strategy, world=world), tflops=tflops)

    table = derived(
        [
            record(cell("sdpa"), tflops=2.0),
            record(cell("naive"), tflops=1.0),
            parallel("ulysses", 2, 4096, 9.0),
            parallel("usp", 2, 4096, 5.0),
            parallel("usp", 4, 8192, 5.0),
        ]
    )
    decided = decision(table)
    assert (
        decided
        and decided.default.ranks == "2"
        and described(decided.default, decided) == "4K tokens · 2 ranks × 2K · forward"
    )
    assert decided.finding.endswith(
        "ulysses+sdpa leads alone in all 1 case (1 mask). No case was played off."
    )
    assert decided.finding.startswith("At 4K tokens on 2 ranks")
    assert {view.ranks for view in decided.views} == {ALONE, "2", "4"}


def test_a_setting_with_a_comparison_comes_before_larger_ones_without():
    lonely = [
        record(cell("sdpa", mask, seqlen=seqlen)) for mask in ("full", "causal") for seqlen in (4096, 8192)
    ]
    rivals = [record(cell("sdpa", kind="cp", strategy=strategy, world=2)) for strategy in ("ulysses", "usp")]
    decided = decision(derived([*lonely, *rivals]))
    assert decided and decided.default.ranks == "2" and "strategies" not in decided.finding


def test_nothing_to_decide():
    assert (
        decision(derived([])) is None
        and decision(derived([record(cell(), OutOfMemory(requested_bytes=None, where="fwd"))])) is None
    )
    lone = decision(derived([record(cell())]))
    assert lone and lone.finding.endswith("no two kernels ran the same: there is nothing to compare.")


def test_a_playoff_decides_its_case_and_is_no_cell_of_the_page(small):
    """Its records say that flex is the faster one; the map's cells, counts and lengths are those of the
    grid."""
    played = derived([timed("sdpa", "causal", *[1.5] * 12), timed("flex", "causal", *[1.2] * 12)])
    table = pd.concat(
        [small.assign(playoff="", repeat=False), played.assign(playoff="p", repeat=False)], ignore_index=True
    )
    decided = decision(table)
    assert decided and "flex is the fastest of 3, by a play-off: " in decided.default.verdicts["causal"]
    assert [method for method, _ in decided.default.ranking("causal")] == ["flex", "sdpa", "naive"]
    assert (
        "1 of them was played off" in decided.finding and "flex leads alone in all 2 cases" in decided.finding
    )
    points = rate_points(table, "kernel", ["direction", "seqlen"])
    assert points.num_cells.sum() == (small.status == "ok").sum(), "figures show the cells"
    (tile,) = (tile for tile in tiles(labelled(table)) if "Leading" in tile.label)
    assert tile.detail.endswith("; 1 played off")


def test_methods_of_another_protocol_are_not_compared_and_the_page_says_so(tmp_path):
    """fa3 and cudnn were measured anew, with rests of the GPU; flex under one mask alone, where it is left
    out."""

    def on_gpu(kernel, mask, ms, duty):
        samples = Samples(time_ms=((ms,) * 10,), warmup=1, timer="cuda_event", duty=duty)
        return record(cell(kernel, mask), samples=samples, gpu="NVIDIA H100 80GB HBM3")

    records = [
        *(
            on_gpu(kernel, "causal", ms, duty)
            for kernel, ms, duty in (("fa3", 2.0, 0.5), ("cudnn", 3.0, 0.5), ("flex", 1.0, None))
        ),
        *(
            on_gpu(kernel, "full", ms, duty)
            for kernel, ms, duty in (("fa3", 2.0, None), ("cudnn", 3.0, None), ("flex", 1.0, 0.5))
        ),
    ]
    decided = decision(derived(records))
    assert decided and [method for method, _ in decided.default.ranking("causal")] == ["fa3", "cudnn"]
    statuses = {key: status for key, (status, _) in decided.default.missing.items()}
    assert statuses == {
        ("causal", "flex"): "measured without rests, not compared",
        ("full", "flex"): "measured with rests, not compared",
    }
    assert "1 of 2 cases was measured by the protocol with rests" in decided.finding
    foot = {column.method: column for column in decided.default.columns}["flex"]
    assert foot.share is None and "(2 measured by another protocol, not compared)" in foot.tip
    (winner,) = (row.winners["fwd"] for row in rankings(derived(records))[0].rows if row.title == "causal")
    assert isinstance(winner, Winner) and winner.rest.count("1 was measured without rests, not compared") == 1
    assert any(
        "1 of 2 cases was measured by the protocol with rests" in tile.detail
        for tile in tiles(labelled(derived(records)))
    )
    page = build(records, [], tmp_path / "page.html", study_title="x").read_text(encoding="utf-8")
    assert (
        re.search(r">(no )?rests</td>", page)
        and "3 of 6 cells were measured by the protocol with rests" in page
    )
