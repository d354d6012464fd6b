"""Standings of figures' points, and the setting at which each case is judged."""

import re

import pytest

from longca.lab.report.answers import tiles
from longca.lab.report.findings import leaders, standings_of
from longca.lab.report.winners import rankings
from longca.lab.store.table import derived
from tests.helpers.records import record
from tests.helpers.report.cases import cell, judged, rates, timed, told


def test_nothing_is_the_fastest_where_nothing_else_ran():
    """The longest length that two ran counts; a method that is alone under a mask has beaten nobody."""
    records = [
        record(cell("naive", seqlen=512), tflops=9.0),
        record(cell("sdpa", seqlen=512), tflops=1.0),
        record(cell("sdpa"), tflops=3.0),
        record(cell("sdpa", "full"), tflops=4.0),
    ]
    verdicts = judged(records)
    assert (verdicts["causal"][0], verdicts["causal"][1].leaders) == (512, ("naive",)) and not verdicts[
        "full"
    ][1].is_compared
    assert told(records).startswith("naive leads on the one mask, against 1 other")
    rows = {row.title: row.winners["fwd"] for row in rankings(derived(records))[0].rows}
    assert rows["causal"].method == "naive" and re.fullmatch(
        r"only sdpa ran: [\d.]+ TFLOP/s at 1K; 1 other not asked", rows["full"]
    )
    assert not [tile for tile in tiles(derived(records[2:])) if "Leading" in tile.label]


def test_places_shares_and_ties():
    records = [
        timed("naive", "causal", 1.0, 1.1, 1.2),
        timed("sdpa", "causal", 1.0, 1.05, 1.2),
        timed("flex", "causal", 2.1, 2.1, 2.1),
    ]
    (case,) = standings_of(rates(records), ["mask_label"]).values()
    assert [entry.method for entry in case.entries] == ["sdpa", "naive", "flex"] and case.leaders == (
        "sdpa",
        "naive",
    )
    assert [entry.share for entry in case.entries] == pytest.approx([1, 1.05 / 1.1, 0.5])
    assert leaders(rates(records), ["mask_label"], 2) == ["sdpa", "naive"]


def test_the_fastest_is_judged_at_the_longest_length():
    records = [
        record(cell("naive", seqlen=512), tflops=9.0),
        record(cell("sdpa", seqlen=512), tflops=1.0),
        record(cell("naive"), tflops=2.0),
        record(cell("sdpa"), tflops=3.0),
    ]
    seqlen, case = judged(records)["causal"]
    assert (seqlen, case.winner, case.leaders, case.second.method) == (1024, "", ("sdpa",), "naive")
    assert case.lead.ratio == pytest.approx(1.5, rel=0.1)


def test_a_lead_within_what_repeats_differ_by_is_a_tie():
    assert (
        told([timed("naive", "causal", 1.0, 1.1, 1.2), timed("sdpa", "causal", 1.0, 1.05, 1.2)])
        == "No method leads alone on the one mask, against 1 other"
    )
    assert told(
        [timed("naive", "causal", 1.0, 1.1, 1.2), timed("sdpa", "causal", 0.5, 0.55, 0.6)]
    ).startswith("sdpa leads on the one mask")


def test_claims_count_masks():
    records = [
        record(cell(kernel, mask), tflops=speed)
        for mask, speeds in {"causal": (1.0, 2.0), "full": (1.0, 4.0), "prefix_lm": (3.0, 1.0)}.items()
        for kernel, speed in zip(("naive", "sdpa"), speeds, strict=True)
    ]
    assert told(records) == "sdpa leads on 2 of 3 masks, naive on 1, against 1 other, by up to 3.9×"
    assert told([]) == "Nothing could be timed"
