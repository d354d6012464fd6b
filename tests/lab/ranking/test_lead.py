"""Leads: what repeats of identical cells show decides how much of a lead means something, and so do the
samples."""

from math import log

import pytest

from longca.lab.ranking import (
    Lead,
    MeasuredPoint,
    Measurement,
    Resolution,
    Resolutions,
    compare,
    mean_lead,
    relation_of,
)
from longca.lab.ranking.sentences import lead_text
from longca.lab.studies.samples import median_bounds
from tests.helpers.ranking.measured import GPU, KNOWN, measured, point


def test_the_interval_of_a_median_needs_no_distribution():
    assert median_bounds([3.0]) == (3.0, 3.0) and median_bounds([5, 1, 4, 2, 3]) == (1, 5)
    assert median_bounds(range(1, 21)) == (6, 15), (
        "the interval that tables of order statistics give for 20 samples"
    )
    low, high = median_bounds(range(1, 2002))
    assert low == pytest.approx(1001 - 44, abs=2) and high == pytest.approx(1001 + 44, abs=2)


@pytest.mark.parametrize(
    ("facts", "relation"),
    [
        ({"playoff": "p"}, "play-off"),
        ({}, "run"),
        ({"run": "r2"}, "device"),
        ({"unit": "GPU-b"}, "model"),
        ({"unit": ""}, "model"),
        ({"device": "NVIDIA H200"}, "other model"),
    ],
)
def test_relations_from_the_closest_to_the_farthest(facts, relation):
    assert (
        relation_of(measured(1.0, playoff="p" if facts.get("playoff") else ""), measured(1.0, **facts))
        == relation
    )


def test_the_farther_two_measurements_are_the_more_they_must_differ():
    first = point("a", 1.0)
    for facts, tie, apart in (
        ({}, 1.009, 1.011),
        ({"run": "r2"}, 1.019, 1.021),
        ({"unit": "GPU-b"}, 1.039, 1.041),
    ):
        assert (
            compare(first, point("b", tie, **facts)).is_tie
            and compare(point("b", tie, **facts), first).order == "same"
        )
        assert (
            compare(first, point("b", apart, **facts)).order == "more"
            and compare(point("b", apart, **facts), first).order == "less"
        )


def test_only_if_both_were_measured_with_rests_the_narrower_resolution_counts():
    known = Resolutions((*KNOWN.entries, Resolution(GPU, "model", log(1.015), 500, rests=True)))

    def lead(*rests):
        first, second = (
            MeasuredPoint(name, (measured(time, unit=name, rests=rested),), (), known)
            for name, time, rested in zip("ab", (1.0, 1.02), rests, strict=True)
        )
        return compare(first, second)

    both = lead(True, True)
    single = lead(True, False)
    neither = lead(False, False)
    assert both.order == "more" and both.rests and "with rests" in str(both.resolution)
    assert single.is_tie and neither.is_tie and single.log_resolution == neither.log_resolution == log(1.04)
    assert "only one" in str(single.resolution) and "only one of them with rests" in lead_text(single, "b")
    assert "rests" not in str(neither.resolution) + lead_text(neither, "b")
    assert mean_lead([neither, single]).resolution.is_mixed and not mean_lead([neither, both]).rests


def test_scattered_samples_tell_nothing_apart():
    steady = point("a", 1.0, 1.0, 1.001, 1.001, 1.0)
    scattered = point("b", 0.9, 1.3, 1.1, 1.05, 1.6)
    lead = compare(steady, scattered)
    assert lead.is_tie and lead.ratio == pytest.approx(1.1) and lead.low < 1 < lead.high
    assert compare(steady, point("b", 1.1, 1.1, 1.101, 1.1, 1.1)).order == "more"


def test_alternating_calls_are_compared_round_by_round():
    """The clock falls by a fifth meanwhile: apart from each other both would scatter by more than they
    differ."""
    clock = [1.0, 1.05, 1.1, 1.15, 1.2, 1.2]
    first = point("a", 1.0, played=clock)
    second = point("b", 1.0, played=[1.01 * time for time in clock])
    lead = compare(first, second)
    assert lead.relation == "play-off" and lead.order == "more" and lead.ratio == pytest.approx(1.01)
    assert lead.low == pytest.approx(1.01 / 1.004) and lead.high == pytest.approx(1.01 * 1.004)
    apart = compare(
        MeasuredPoint("a", first.playoffs, (), KNOWN),
        MeasuredPoint("b", (measured(*second.playoffs[0].times_ms, playoff="q"),), (), KNOWN),
    )
    assert apart.relation == "run" and apart.is_tie


def test_seeds_that_both_have_are_compared():
    first = MeasuredPoint("a", (measured(1.0, seed=0), measured(2.0, seed=1)), (), KNOWN)
    second = MeasuredPoint("b", (measured(1.1, seed=0),), (), KNOWN)
    assert compare(first, second).ratio == pytest.approx(1.1)


def test_means_over_cases_tie_within_what_their_parts_do():
    leads = [compare(point("a", 1.0, unit="GPU-b"), point("b", time)) for time in (1.03, 1.02, 1.025, 1.025)]
    mean = mean_lead(leads)
    assert mean.log_resolution == pytest.approx(log(1.04) * (0.25 + 0.75 / 4) ** 0.5), (
        "what devices have in common stays"
    )
    assert mean.ratio == pytest.approx(1.025, rel=1e-4) and mean.is_tie and all(lead.is_tie for lead in leads)
    assert mean_lead([compare(point("a", 1.0), point("b", 1.000067))] * 24).is_tie, "0.0067 % ahead is a tie"
    assert mean_lead([compare(point("a", 1.0), point("b", 1.009))] * 4).order == "more", (
        "four ties of 0.9 % tell apart: by 1 % / √4"
    )


def test_without_a_known_device_the_widest_resolution_is_borrowed():
    lead = compare(
        MeasuredPoint("a", (Measurement(1.0, 1.0, 1.0, device="CPU"),)),
        MeasuredPoint("b", (Measurement(0.97, 0.97, 0.97, device="CPU"),)),
        KNOWN,
    )
    assert lead.is_tie and "too few are known of two devices of one model (CPU)" in str(lead.resolution)
    models = compare(point("a", 1.0), point("b", 1.03, device="NVIDIA H200"))
    assert models.relation == "other model" and models.is_tie and GPU in str(models.resolution)


def test_differences_have_no_digits_below_a_thousandth():
    """0.0067 % would claim that two measurements agree so well."""
    tied = compare(point("a", 1.0), point("b", 1.000067))
    assert "(under 0.1 % ahead; " in lead_text(tied, "b") and "0.00" not in lead_text(tied, "b")
    close = Lead(log(1.012), log(1.012) - 1e-5, 0.02, 0.001, tied.relation, tied.resolution)
    assert lead_text(close, "b") == "1.2 % faster than b (0 to 3.2 %)"
