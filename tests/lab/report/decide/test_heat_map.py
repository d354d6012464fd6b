"""The heat map: feet of columns, percentages, colours, and squares of lone and of noisy results."""

import re
from dataclasses import replace

import pytest

from longca.lab.report.build import build
from longca.lab.report.decide.views import decision
from longca.lab.store.table import derived
from tests.helpers.records import quick_study, record
from tests.helpers.report.cases import cell, repeated, tallied, timed


def test_a_noisy_result_is_no_worst_share_unless_there_is_no_other():
    """A host that delays a record must not be told as a weakness of its method."""
    records = [timed("sdpa", mask, 1.0, 1.0) for mask in ("causal", "full")]
    noisy = timed("flex", "full", 2.0, 4.0, 6.0)
    steady = timed("flex", "causal", 2.0, 2.0)
    flex = tallied(derived([*records, noisy, steady]))["flex"]
    assert (flex.worst.share, flex.worst.where.mask_label, flex.num_cases) == (
        pytest.approx(0.5),
        "causal",
        2,
    )
    assert flex.mean == pytest.approx((0.5 * 0.25) ** 0.5), "the mean is of all"
    view = decision(derived([*records, noisy, steady])).default
    column = next(column for column in view.columns if column.method == "flex")
    assert column.note == "25 % with 1 noisy", "the foot says what it leaves out"
    only = tallied(derived([*records, noisy]))["flex"]
    assert (only.worst.share, only.worst.where.mask_label, only.worst.left_out) == (
        pytest.approx(0.25),
        "full",
        (),
    )


def test_the_foot_of_a_column_is_the_worst_that_it_shows_or_says_what_it_leaves_out():
    for view in [*decision(derived(quick_study())).views, *decision(derived(repeated())).views]:
        for column in view.columns:
            shown = [
                entry.share
                for (_, method), entry in view.entries.items()
                if method == column.method and not entry.is_alone
            ]
            if column.share is not None:  # else it ran masks alone that do not count
                assert column.share == min(shown) or f"{int(100 * min(shown))} % with" in column.note


@pytest.mark.usefixtures("no_figures")
def test_a_lone_result_is_first_of_nothing(small, tmp_path):
    """Neither frame nor percent nor place, in the map, the last row and the ranking."""
    decided = decision(small[small.seqlen == 2048])
    assert decided and decided.default.entries["causal", "naive"].is_alone
    assert [(column.ran_all, column.share) for column in decided.default.columns] == [(True, None)]
    text = build([timed("naive", "causal", 9.0, 9.0)], [], tmp_path / "page.html", study_title="x").read_text(
        encoding="utf-8"
    )
    shown = re.search(r"<tbody>.*?<tfoot>.*?</tfoot>", text[text.index('id="map"') :], re.DOTALL)[0]
    assert (
        'class="case lone"' in shown
        and ">only<" in shown
        and "100" not in re.sub(r'style="[^"]*"', "", shown)
        and "<b>–</b>" in shown
    )
    ranking = re.search(r"<tbody>.*?</tbody>", text[text.index('id="ranking"') :], re.DOTALL)[0]
    assert re.findall(r">([^<>]*)</td>", ranking)[0] == "–" and "leads" not in ranking and "%" not in ranking


def test_both_percentages_are_rounded_down():
    decided = decision(derived([record(cell("sdpa")), record(cell("naive"))]))
    assert decided
    entry = replace(decided.default.entries["causal", "naive"], share=627 / 640)
    assert (entry.text, entry.percent) == ("97", "97.9")


def test_colours_tell_the_best_apart():
    decided = decision(
        derived(
            [
                record(cell("sdpa"), tflops=1.0),
                record(cell("naive"), tflops=0.1),
                record(cell("flex"), tflops=0.99),
            ]
        )
    )
    assert decided
    strengths = {method: entry.strength for method, entry in decided.default.ranking("causal")}
    assert strengths["sdpa"] == 100 and 90 < strengths["flex"] < 100 and strengths["naive"] == 0
