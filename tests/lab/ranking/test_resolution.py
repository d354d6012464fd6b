"""Resolutions: from repeats of identical cells, widened by those of a study where they are worse."""

import random
from math import exp, log

import pytest

from longca.lab.ranking import RepeatPair, Resolution, Resolutions, repeat_pairs
from longca.lab.ranking.repeats import is_told_apart, share_told_apart
from longca.lab.ranking.resolution import DOUBT, FILE, LEAST_PAIRS, LEAST_PLAYED, _tail, upper_quantile
from tests.helpers.ranking.measured import GPU, KNOWN, measured


def repeats(count, scatter, relation="model", seed=0, rests=False):
    rng = random.Random(seed)
    return [
        RepeatPair(
            measured(exp(rng.gauss(0, scatter)), unit="GPU-a", rests=rests),
            measured(exp(rng.gauss(0, scatter)), unit="GPU-b", rests=rests),
            relation,
        )
        for _ in range(count)
    ]


def test_the_next_wider_relation_stands_in_and_says_so():
    few = Resolutions((Resolution(GPU, "model", 0.04, 249), Resolution("NVIDIA H200", "model", 0.07, 109)))
    borrowed = few.of(GPU, "play-off")
    assert (borrowed.log_ratio, borrowed.relation) == (0.04, "model") and "alternating calls" in str(borrowed)
    assert few.of("CPU", "run").log_ratio == 0.07 and not few.of(GPU, "model").borrowed_by


def test_calls_with_rests_have_resolutions_of_their_own():
    """Nothing is known of a closer relation with rests: the wider one with rests; then the one without."""
    known = Resolutions((*KNOWN.entries, Resolution(GPU, "device", 0.006, 50, rests=True)))
    assert known.of(GPU, "device") == KNOWN.of(GPU, "device")
    assert [known.of(GPU, near, rests=True).log_ratio for near in ("device", "run")] == [0.006, 0.006]
    assert not known.of(GPU, "device", rests=True).borrowed_by
    assert "too few are known of one device in one run, with rests" in str(known.of(GPU, "run", rests=True))
    wider = known.of(GPU, "model", rests=True)
    assert (wider.log_ratio, wider.rests) == (log(1.04), False) and "with rests" in wider.borrowed_by
    assert known.of("CPU", "run", rests=True).log_ratio == log(1.04)


def test_repeats_with_rests_widen_those_with_rests():
    known = Resolutions((*KNOWN.entries, Resolution(GPU, "model", 0.01, 500, rests=True)))
    assert known.widened(repeats(30, 0.003, rests=True)) == known
    worse = known.widened(repeats(30, 0.008, rests=True))
    assert worse.of(GPU, "model", rests=True).is_own and worse.of(GPU, "model") == known.of(GPU, "model")
    much_worse = known.widened(repeats(30, 0.1, rests=True))
    assert (
        much_worse.of(GPU, "model").log_ratio == much_worse.of(GPU, "model", rests=True).log_ratio > log(1.1)
    ), "calls without rests differ more"
    assert known.widened(repeats(30, 0.02)).of(GPU, "model", rests=True) == known.of(GPU, "model", rests=True)


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


def test_a_cell_whose_own_samples_scatter_does_not_widen_the_resolution_of_others():
    """cuDNN's operator of torch with packed documents of 1K tokens took 60 or 90 ms by chance: the pair
    differed by 12 %, which its samples explain, and made leads of 9 % of all other kernels ties."""
    steady = [
        measured(
            10 + 0.01 * step, 10.01 + 0.01 * step, 10.02 + 0.01 * step, cell_id=f"c{step % 24}", unit=unit
        )
        for unit in ("GPU-a", "GPU-b")
        for step in range(24)
    ]
    times = [60, 61, 62, 88, 90, 91, 60.5, 89]
    scattering = [
        measured(*(time * faster for time in times), cell_id=f"wild{number}", unit=unit)
        for number in range(6)
        for unit, faster in (("GPU-a", 1), ("GPU-b", 1.12))
    ]
    pairs = repeat_pairs([*steady, *scattering])
    assert len(pairs) == 30 and sum(pair.log_ratio > log(1.1) for pair in pairs) == 6
    assert KNOWN.widened(pairs) == KNOWN
    unsteady = [measured(*(time * 1.12 for time in (10, 10.01, 10.02)), cell_id=f"c{n}") for n in range(6)]
    widened = KNOWN.widened(repeat_pairs([*steady, *unsteady])).of(GPU, "model")
    assert widened.is_own and widened.log_ratio > log(1.1), "nothing explains these"


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


def test_twins_are_repeats_of_playoffs_and_stand_alone_where_they_are_enough():
    def player(number, name, scale=1.0, rounds=range(20)):
        times = [scale * (1 + 0.1 * (round % 2)) for round in rounds]
        return measured(*times, playoff=f"p{number}", cell_id=name, rounds=tuple(map(float, rounds)))

    few = repeat_pairs([player(0, "a"), player(0, "a", 1.01), player(0, "b")])
    assert len(few) == 4 and {pair.relation for pair in few} == {"play-off"}
    assert few[0].log_ratio == pytest.approx(log(1.01)) and few[1].log_ratio == pytest.approx(log(1.1))
    many = repeat_pairs([player(number, "a", scale) for number in range(20) for scale in (1.0, 1.01)])
    assert len(many) == 20 and all(pair.log_ratio == pytest.approx(log(1.01)) for pair in many)
    apart = repeat_pairs([player(0, "a"), player(0, "a", 1.01, range(15, 35))])
    assert len(apart) == 2, "five rounds in common are too few for a pair of both"


def test_repeats_are_of_one_cell_and_one_version_on_one_model():
    first = measured(1.0, cell_id="c", version="v")
    assert len(repeat_pairs([first, measured(1.1, cell_id="c", version="v", run="r2")])) == 1
    others = [
        measured(1.1, cell_id="d", version="v"),
        measured(1.1, cell_id="c", version="w"),
        measured(1.1, cell_id="c", version="v", device="NVIDIA H200"),
    ]
    others.append(measured(1.1, cell_id="c", version="v", rests=True))
    assert repeat_pairs([first, *others]) == [] and len(repeat_pairs([first, *others], any_version=True)) == 1


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

    twins = tool.pairs()
    assert FILE.read_text(encoding="utf-8") == tool.text(twins), "run `python -m tools.repeats`"
    text = tool.PAGE.read_text(encoding="utf-8")
    assert text == tool.page(twins, text), "run `python -m tools.repeats`"
    held_out = tool._held_out(twins)
    groups = tool._groups(twins)
    for known in tool.resolutions(twins).entries:
        members = groups[known.device, known.relation, known.rests]
        beyond = sum(held_out[id(pair)] for pair in members)
        assert len(members) >= LEAST_PAIRS and _tail(len(members), beyond) > DOUBT, "more than chance allows"
    assert {pair.first.rests == pair.second.rests for pair in twins} == {True}
    model = {rests: Resolutions.known().of(GPU, "model", rests).log_ratio for rests in (False, True)}
    assert model[True] < model[False], "rests make measurements more repeatable"


def test_a_bound_above_that_of_a_wider_relation_says_nothing():
    from tools import repeats as tool

    many = repeats(300, 0.004, rests=True)
    few = repeats(25, 0.004, "run", rests=True)
    assert [entry.relation for entry in tool.resolutions([*many, *repeats(25, 0.02, "run")]).entries] == [
        "run",
        "model",
    ], "of two protocols nothing follows"
    wild = [*few, RepeatPair(measured(1.0, rests=True), measured(1.2, rests=True), "run")]
    made = tool.resolutions([*many, *wild])
    assert [entry.relation for entry in made.entries] == ["model"]
    assert made.of(GPU, "run", rests=True).borrowed_by
