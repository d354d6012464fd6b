"""Resolutions: from repeats of identical cells, widened by those of a study where they are worse."""

import random
from math import exp, log

import pytest

from longca.ranking import RepeatPair, Resolution, Resolutions, repeat_pairs
from longca.ranking.repeats import is_told_apart, share_told_apart
from longca.ranking.resolution import FILE, LEAST_PLAYED, upper_quantile
from tests.ranking.helpers import GPU, KNOWN, measured


def repeats(count, scatter, relation="model", seed=0):
    rng = random.Random(seed)
    return [
        RepeatPair(
            measured(exp(rng.gauss(0, scatter)), unit="GPU-a"),
            measured(exp(rng.gauss(0, scatter)), unit="GPU-b"),
            relation,
        )
        for _ in range(count)
    ]


def test_the_next_wider_relation_stands_in_and_says_so():
    few = Resolutions((Resolution(GPU, "model", 0.04, 249), Resolution("NVIDIA H200", "model", 0.07, 109)))
    borrowed = few.of(GPU, "play-off")
    assert (borrowed.log_ratio, borrowed.relation) == (0.04, "model") and "alternating calls" in str(borrowed)
    assert few.of("CPU", "run").log_ratio == 0.07 and not few.of(GPU, "model").borrowed_by


def test_few_pairs_give_an_upper_bound_of_their_quantile():
    assert upper_quantile(list(range(1, 202))) == 191, "of many it is the quantile itself"
    assert 95 * 60 / 100 < upper_quantile(list(range(1, 61))) <= 60 and upper_quantile([1, 2, 3]) == 3


def test_worse_repeats_of_a_study_widen_it_and_better_ones_do_not():
    assert KNOWN.widened(repeats(30, 0.005)) == KNOWN, "one in twenty beyond is what is expected"
    assert KNOWN.widened(repeats(1, 0.5)) == KNOWN, "a single bad record says little"
    worse = KNOWN.widened(repeats(30, 0.1))
    assert (
        worse.of(GPU, "model").is_own
        and worse.of(GPU, "model").log_ratio > log(1.1)
        and "of this study" in str(worse.of(GPU, "model"))
    )
    assert worse.of(GPU, "run") == KNOWN.of(GPU, "run")
    close = KNOWN.widened(repeats(30, 0.1, "run"))
    assert close.of(GPU, "model").log_ratio == close.of(GPU, "run").log_ratio > log(1.1), (
        "farther ones differ more"
    )


def test_the_halves_of_a_playoff_are_its_repeats():
    rng = random.Random(1)
    played = [
        measured(*(exp(rng.gauss(0, 0.002)) for _ in range(20)), playoff=f"p{number}", cell_id=f"{number}")
        for number in range(40)
    ]
    pairs = repeat_pairs([*played, measured(1.0, playoff="q")])
    assert {pair.relation for pair in pairs} == {"play-off"} and len(pairs) == 40
    few = Resolutions((Resolution(GPU, "model", 0.04, 249),))
    own = few.widened(pairs).of(GPU, "play-off")
    assert own.is_own and 0.0005 < own.log_ratio < 0.004 and few.widened(pairs[: LEAST_PLAYED - 1]) == few


def test_repeats_are_of_one_cell_and_one_version_on_one_model():
    one = measured(1.0, cell_id="c", version="v")
    assert len(repeat_pairs([one, measured(1.1, cell_id="c", version="v", run="r2")])) == 1
    others = [
        measured(1.1, cell_id="d", version="v"),
        measured(1.1, cell_id="c", version="w"),
        measured(1.1, cell_id="c", version="v", device="NVIDIA H200"),
    ]
    assert repeat_pairs([one, *others]) == [] and len(repeat_pairs([one, *others], any_version=True)) == 1


@pytest.mark.parametrize("scatter", [0.002, 0.02])
def test_at_most_one_in_twenty_repeats_is_called_different(scatter):
    """By resolutions of other pairs of the same kind."""
    known = Resolutions(
        (Resolution(GPU, "model", upper_quantile([pair.log_ratio for pair in repeats(300, scatter)]), 300),)
    )
    apart, count = share_told_apart(repeats(1000, scatter, seed=1), lambda pair: is_told_apart(pair, known))
    assert 0.02 < apart / count < 0.08


def test_the_file_is_that_of_the_committed_records():
    from tools import repeats as tool

    found = tool.pairs()
    assert FILE.read_text(encoding="utf-8") == tool.text(found), "run `python -m tools.repeats`"
    text = tool.PAGE.read_text(encoding="utf-8")
    assert text == tool.page(found, text), "run `python -m tools.repeats`"
    for known in tool.resolutions(found).entries:
        held_out = tool._held_out(found)
        members = [
            pair for pair in found if (pair.first.device, pair.relation) == (known.device, known.relation)
        ]
        assert len(members) >= 100 and sum(held_out[id(pair)] for pair in members) <= 0.05 * len(members)
