"""Measurements with rests of the GPU after each call, and without, are never ranked against each other."""

import pytest

from longca.lab.ranking import compare, mean_standing, standing, tallies
from longca.lab.ranking.protocol import is_by_rests
from longca.lab.ranking.sentences import counts_text, everywhere_text, field_text, finding_text, verdict
from longca.lab.ranking.table import competes, counted, has_rests, standings
from longca.lab.store.table import derived
from longca.lab.studies.outcome import OutOfMemory
from tests.helpers.ranking.measured import KNOWN, MeasuredPoint, measured, point
from tests.helpers.ranking.places import with_duty
from tests.lab.ranking.test_table import timed


def rested(*args, **fields):
    return with_duty(timed(*args, **fields), 0.5)


def text(rate):
    return f"{rate:.0f} calls/s"


def test_two_with_rests_leave_the_others_out():
    points = [point("a", 1.0), point("b", 1.3, rests=True), point("c", 1.2, rests=True)]
    case = standing(points, {"d": "oom"}, ["e"])
    assert (
        [entry.method for entry in case.entries] == ["c", "b"]
        and case.rests
        and list(case.other_protocol) == ["a"]
    )
    assert field_text(case) == (
        "first of 2; 1 could not; 1 was not asked; 1 was measured without rests, not compared"
    )
    assert "c is first of 2:" in verdict(case, text) and not case.lead.resolution.is_mixed


def test_a_single_one_with_rests_is_left_out():
    case = standing([point("a", 1.0, rests=True), point("b", 1.3), point("c", 1.2)], {}, ["a"])
    assert [entry.method for entry in case.entries] == ["c", "b"] and not case.rests and not case.not_asked
    assert field_text(case) == "first of 2; 1 was measured with rests, not compared"
    alone = standing([point("a", 1.0, rests=True), point("b", 1.3)])
    assert not alone.is_compared and alone.first.method == "b"
    assert verdict(alone, text).startswith("Only b was measured without rests: 769 calls/s.")
    assert standing([point("a", 1.0, rests=True)]).rests, "with nobody else there, rests are better"


def test_of_seeds_those_of_one_protocol_count():
    def seeds(method, *protocols):
        records = [measured(1.0 + rests, seed=seed, rests=rests) for seed, rests in enumerate(protocols)]
        return MeasuredPoint(method, tuple(records), (), KNOWN)

    case = standing([seeds("a", True, False), seeds("b", True, True), seeds("c", False, False)])
    assert [len(entry.point.measurements) for entry in case.entries] == [1, 2]
    assert list(case.other_protocol) == ["c"]
    lead = compare(seeds("a", True, False), seeds("c", False, False))
    assert not lead.resolution.is_mixed and lead.ratio == 1.0, "the seed that both have without rests"


def test_a_playoff_has_a_protocol_of_its_own():
    """Others are compared by cells of one protocol, though the play-off had no rests."""
    played = [
        MeasuredPoint(name, (measured(own, rests=True),), (measured(*[turn] * 10, playoff="p"),), KNOWN)
        for name, own, turn in (("a", 1.0, 1.1), ("b", 1.1, 1.0))
    ]
    case = standing([*played, point("c", 2.2, rests=True), point("d", 1.0)])
    assert (case.winner, [entry.method for entry in case.entries]) == ("b", ["b", "a", "c"])
    assert case.entry("c").share == pytest.approx(0.5) and list(case.other_protocol) == ["d"]
    old = MeasuredPoint("b", (measured(1.0),), (measured(*[1.0] * 10, playoff="p"),), KNOWN)
    case = standing([played[0], old, point("c", 2.0, rests=True)])
    assert [entry.method for entry in case.entries] == ["b", "a", "c"], (
        "b plays, and its cell counts for nothing"
    )
    assert case.entry("c").share == pytest.approx(0.5 * 1.0 / 1.1)


def test_sentences_over_both_say_how_many_cases_had_rests():
    cases = {
        "x": standing([point("a", 1.0, rests=True), point("b", 2.0, rests=True)]),
        "y": standing([point("a", 1.0), point("b", 2.0), point("c", 1.5, rests=True)]),
    }
    assert counts_text(cases).endswith("; 1 of 2 cases was measured by the protocol with rests")
    assert ". 1 of 2 cases was measured by the protocol with rests. " in f"{finding_text(cases)} "
    family = mean_standing(list(cases.values()))
    assert family.is_mixed and field_text(family) == (
        "first of 2; 1 was measured by another protocol in some, not compared; 1 of 2 cases was measured by "
        "the protocol with rests"
    )
    tally = {tally.method: tally for tally in tallies(cases)}
    assert (tally["c"].num_other_protocol, tally["c"].num_not_asked, tally["c"].num_could_not) == (1, 1, 0)
    only = {"y": cases["y"]}
    assert "1 was measured by another protocol in some" in everywhere_text(tallies(only), 1, "kernel")
    assert "protocol" not in counts_text(only)


def test_of_records_of_one_cell_that_with_rests_counts_first():
    rows = [
        *(timed(kernel, 1.0, study="many") for kernel in ("sdpa", "flex", "naive")),
        *(rested(kernel, 2.0, study="few") for kernel in ("sdpa", "flex")),
        timed("sdpa", 3.0, study="many", seqlen=2048),
        timed("flex", 3.0, study="many", seqlen=2048),
        rested("sdpa", 4.0, study="few", seqlen=2048),
    ]
    table = derived(rows)
    own = table[counted(table)]
    assert sorted(zip(own.seqlen, own.method, own.time_ms_median, strict=True)) == [
        (1024, "flex", 2.0),
        (1024, "naive", 1.0),
        (1024, "sdpa", 2.0),
        (2048, "flex", 3.0),
        (2048, "sdpa", 3.0),
    ], "where one method alone has rests, its record without competes"
    assert own.method[~competes(own)].tolist() == ["naive"] and has_rests(own).sum() == 2
    actual = {case.first.point.measurements[0].rests: case for case in standings(table).values()}
    assert list(actual[True].other_protocol) == ["naive"] and not actual[False].other_protocol


def test_what_failed_with_rests_could_not():
    rows = [
        rested("sdpa", 1.0),
        rested("flex", 2.0),
        timed("naive", outcome=OutOfMemory(requested_bytes=None, where="fwd")),
    ]
    (case,) = standings(derived(rows)).values()
    assert case.could_not == {"naive": "oom"} and not case.other_protocol


@pytest.mark.parametrize(
    ("rested", "unrested", "by_rests"),
    [
        ("", "", False),
        ("", "ab", False),
        ("a", "", True),
        ("a", "a", True),
        ("a", "b", False),  # one alone has nobody to be compared with
        ("ab", "c", True),
        ("ab", "bcd", True),
        ("ab", "bcde", False),  # two of five do not say who is first
        ("abcdef", "abcdefghijkl", True),
    ],
)
def test_half_of_the_methods_and_two_decide_the_protocol(rested: str, unrested: str, by_rests: bool):
    assert is_by_rests(set(rested), set(unrested)) == by_rests
