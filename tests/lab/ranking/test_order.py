"""Standings and tallies: who leads, who is tied, who was not asked, and what a worst share leaves out."""

import pytest

from longca.lab.ranking import mean_standing, standing, tallies
from longca.lab.ranking.sentences import counts_text, everywhere_text, field_text, margin, verdict, worst_text
from tests.helpers.ranking.measured import point


def text(rate):
    return f"{rate:.0f} calls/s"


def test_the_first_leads_a_group_that_is_not_told_apart():
    case = standing([point("c", 2.0), point("b", 1.005), point("a", 1.0)], {"d": "oom"}, ["e"])
    assert (
        [entry.method for entry in case.entries] == ["a", "b", "c"]
        and case.leaders == ("a", "b")
        and not case.is_clear
    )
    assert [entry.share for entry in case.entries] == [1.0, pytest.approx(1 / 1.005), 0.5]
    assert verdict(case, text) == (
        "A tie of 2 in front: a (1000 calls/s) and b; then c at 50 %. One device in one run, not played off."
    )
    assert field_text(case) == "first of 3; 1 could not; 1 was not asked"
    assert [margin(case, place) for place in (1, 2, 3)] == ["tied", "tied with the first", "2.00× slower"]


def test_a_tie_by_scattered_samples_is_called_so():
    case = standing([point("a", 1.0, 1.0, 1.0), point("b", 0.9, 1.5, 2.0), point("c", 1.0, 1.002, 1.004)])
    assert verdict(case, text).startswith("A tie of 3 in front: a (1000 calls/s), c and b (samples scatter).")
    assert [margin(case, place) for place in (2, 3)] == ["tied with the first", "tied: samples scatter"]


def test_without_a_playoff_there_is_a_leader_and_no_winner():
    case = standing([point("a", 1.0), point("b", 1.5)])
    assert case.is_clear and case.leaders == ("a",) and not case.winner and not case.played_off
    assert (
        verdict(case, text)
        == "a is first of 2: 1000 calls/s, 50 % faster than b (49 to 52 %). One device in one run, not "
        "played off."
    )


def test_a_playoff_outranks_what_was_measured_apart():
    case = standing(
        [
            point("a", 1.0, played=[1.1] * 10),
            point("b", 1.02, played=[1.05] * 10),
            point("c", 1.08),
            point("d", 1.01),
        ]
    )
    assert [entry.method for entry in case.entries] == ["b", "a", "d", "c"], (
        "those who did not play come after those who did"
    )
    assert case.winner == "b" and case.played_off and case.relation == "play-off"
    shares = [entry.share for entry in case.entries]
    assert shares == sorted(shares, reverse=True) and shares[1] == pytest.approx(1.05 / 1.1)
    assert verdict(case, text).startswith(
        "b is the fastest of 4, by a play-off, whose players come first: 952 calls/s, 4.8 % faster than a ("
    )
    tie = standing([point("a", 1.0, played=[1.0] * 10), point("b", 1.5, played=[1.001] * 10)])
    assert tie.leaders == ("a", "b") and not tie.winner and verdict(tie, text).endswith("By a play-off.")


def test_a_single_player_played_with_nobody():
    assert not standing([point("a", 1.0, played=[1.0] * 10), point("b", 1.5)]).played_off


def test_models_of_devices_share_no_case():
    with pytest.raises(ValueError, match="one model"):
        standing([point("a", 1.0), point("b", 1.0, device="NVIDIA H200")])


def test_a_lone_method_counts_for_nobody():
    case = standing([point("a", 1.0)], {}, ["b", "c"])
    assert not case.is_compared and not case.is_clear and case.lead is None
    assert (
        verdict(case, text)
        == "Only a ran: 1000 calls/s. There is nothing to compare it with. 2 others were not asked."
    )
    (only,) = tallies({"x": case})
    assert (only.num_cases, only.num_compared, only.num_leading, only.worst) == (1, 0, 0, None)
    assert counts_text({"x": case}) == "Only a ran"


def test_a_mean_is_of_those_that_ran_all():
    cases = [
        standing([point("a", 1.0), point("b", 1.004), point("c", 0.5)]),
        standing([point("a", 1.004), point("b", 1.0)], {"c": "oom"}, ["d"]),
    ]
    family = mean_standing(cases)
    assert (
        family
        and family.leaders == ("a", "b")
        and dict(family.could_not) == {"c": "oom"}
        and family.not_asked == ("d",)
    )
    assert (
        mean_standing([standing([point("a", 1.0)]), standing([point("b", 1.0)])]) is None
        and mean_standing([]) is None
    )


def test_worst_shares_say_what_they_leave_out():
    cases = {
        "x": standing([point("a", 1.0), point("b", 4.0, noise=0.5)]),
        "y": standing([point("a", 1.0), point("b", 2.0)]),
        "z": standing([point("a", 1.0), point("c", 8.0, noise=0.5)], {"b": "oom"}),
    }
    tally = {tally.method: tally for tally in tallies(cases)}
    assert worst_text(tally["b"].worst) == "50 % (25 % with 1 noisy)" and tally["b"].worst.where == "y"
    assert worst_text(tally["c"].worst) == "12 %", "where all are noisy, these count"
    assert (
        tally["a"].num_clear,
        tally["b"].num_could_not,
        tally["b"].num_not_asked,
        tally["c"].num_not_asked,
    ) == (3, 1, 0, 2)
    assert everywhere_text(list(tally.values()), 3, "kernel") == (
        "Only a ran them all (1 could not run some; 1 was not asked for some): at its worst it reaches 100 % "
        "of the best."
    )


def test_counts_name_leaders_and_ties():
    cases = {
        "x": standing([point("a", 1.0), point("b", 3.0)]),
        "y": standing([point("a", 1.0), point("b", 1.001), point("c", 2.0)]),
        "z": standing([point("a", 2.0), point("b", 1.0)]),
        "w": standing([point("a", 1.0)]),
    }
    assert (
        counts_text(cases)
        == "a leads on 1 of 3 masks, b on 1; on 1 no method leads alone, against 1 to 2 others, by up to 3.0×"
    )
    assert (
        counts_text({"y": cases["y"]}) == "No method leads alone on the one mask, against 2 others"
        and counts_text({}) == "Nothing could be timed"
    )
