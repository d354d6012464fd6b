"""Two points beside each other: which is faster, by how much, and which make no pair."""

import pytest

from longca.lab.claims.evidence import of_one_protocol, points
from longca.lab.claims.pairs import Pair, beside_each, pairs
from tests.helpers.claims.verdicts import grid, table


def test_pairs_are_of_the_seeds_that_both_have():
    records = table(
        grid(400, kernel="fa3", seed=[0, 1]), grid(800, kernel="fa3", seed=2), grid(400, kernel="fa2", seed=2)
    )
    (pair,) = pairs(points(records, kernel="fa3"), points(records, kernel="fa2"), "kernel")
    assert (
        pair.ratio == 2
        and pair.order == "more"
        and set(pair.observed(True).cell_ids) == set(records.cell_id[2:])
    )
    assert not pairs(points(records, kernel="fa3"), points(records, kernel="fa2"), "direction")


@pytest.mark.parametrize(
    ("rate", "half", "order"),
    [
        (510, 0.005, "same"),
        (490, 0.005, "same"),
        (600, 0.005, "more"),
        (420, 0.005, "less"),
        (600, 0.3, "same"),
    ],
)
def test_rates_within_the_resolution_or_their_own_samples_are_the_same(rate, half, order):
    samples = [1e3 / rate * (1 + half * step) for step in (-1, -0.5, 0, 0.5, 1)]
    records = table(grid(rate, kernel="fa3", samples_ms=tuple(samples)), grid(500, kernel="fa2"))
    first, second = (points(records, kernel=name)[0] for name in ("fa3", "fa2"))
    assert Pair(first, second).order == order and Pair(first, second).ratio == pytest.approx(rate / 500)
    assert Pair(second, first).order == {"more": "less", "less": "more"}.get(order, "same")


def test_a_play_off_decides_between_its_kernels():
    own = [*grid(500, kernel="fa3"), *grid(560, kernel="fa2"), *grid(400, kernel="flex")]
    played = [*grid(600, kernel="fa3"), *grid(540, kernel="fa2")]
    records = table(own, played).assign(playoff=["", "", "", "p", "p"])
    fa3, fa2, flex = (points(records, kernel=name)[0] for name in ("fa3", "fa2", "flex"))
    assert (fa3.rate, fa2.rate, flex.rate) == (600, 540, 400) and len(fa3.cell_ids) == 1
    assert Pair(fa3, fa2).order == "more" and Pair(fa3, fa2).ratio == pytest.approx(600 / 540)
    assert Pair(fa3, flex).ratio == pytest.approx(500 / 400), "flex did not play: both by themselves"


def test_rates_with_rests_and_without_make_no_pair():
    """Two kernels were measured anew under 64:8 heads, one of them under 64:64."""
    heads = ["64:8", "64:64"]
    observed = points(
        table(
            grid(600, kernel="fa3", method="fa3", heads=heads, duty=0.5),
            grid(500, kernel="fa2", method="fa2", heads="64:8", duty=0.5),
            grid(500, kernel="fa2", method="fa2", heads="64:64"),
            grid(700, kernel="sdpa", method="sdpa", heads=heads),
        ),
        kernel=("fa3", "fa2", "sdpa"),
    )
    by_name = {(point.kernel, point.heads): point for point in observed}
    left_out = {name for name, point in by_name.items() if point.ranked is None}
    assert left_out == {("sdpa", "64:8"), ("fa3", "64:64")} and all(point.ok for point in observed)
    fa3 = [point for point in observed if point.kernel == "fa3"]
    ratios = {
        name: [pair.ratio for pair in compared]
        for name, compared in beside_each(fa3, observed, ["fa2", "sdpa"]).items()
    }
    assert ratios == {"fa2": [pytest.approx(1.2)], "sdpa": []}
    fa2 = [by_name["fa2", name] for name in heads]
    assert pairs(fa2[:1], fa2[1:], "heads") == [], "their cases are of two protocols"
    assert of_one_protocol([*fa2, by_name["sdpa", "64:64"]]) == [fa2[1], by_name["sdpa", "64:64"]]


def test_several_masks_are_compared_by_all_seeds():
    records = table(
        grid(500, kernel="fa3", mask="full", seed=0),
        *(
            grid(rate, kernel="fa3", mask="full_document", seed=seed)
            for seed, rate in enumerate((100, 250, 300))
        ),
    )
    (pair,) = pairs(points(records, mask="full_document"), points(records, mask="full"), "mask")
    assert pair.ratio == pytest.approx(0.5) and pair.order == "less"


def test_a_ratio_is_above_another_only_if_repeats_tell_them_apart():
    def pair(backward):
        both = points(table(grid(backward, kernel="fa3", direction="bwd"), grid(500, kernel="fa3")))
        return pairs(both[:1], both[1:], "direction")[0]

    assert pair(400).is_above(pair(300)) and not pair(300).is_above(pair(400))
    assert not pair(400).is_above(pair(398)) and not pair(398).is_above(pair(400))


def test_each_rival_has_its_own_pairs():
    """The best of several would count a setting with one rival as much as one with all."""
    records = table(
        grid(500, kernel="fa3", seqlen=[8192, 16384]), grid(300, kernel="fa2"), grid(600, kernel="cudnn")
    )
    observed = points(records)
    beside = beside_each(observed[:2], observed, ["fa2", "cudnn", "flex"])
    assert {name: [pair.order for pair in compared] for name, compared in beside.items()} == {
        "fa2": ["more"],
        "cudnn": ["less"],
        "flex": [],
    }
