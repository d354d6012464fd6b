"""Sizes, lines and labels of figures."""

import re

import pandas as pd
import pytest

from longca.core.plugin import Registry
from longca.lab.report.look.style import Style, spread
from longca.lab.report.look.svg import draw
from longca.lab.store.table import derived
from tests.helpers.records import quick_study

METHODS = ("flex", "naive", "sdpa", "flashmask", "control")


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([], []),
        ([10.0, 40.0], [10.0, 40.0]),
        ([20.0, 21.0, 50.0], [16.5, 24.5, 50.0]),  # those too close move apart around their mean
        ([58.0, 59.0, 60.0], [44.0, 52.0, 60.0]),
        ([0.0, 1.0], [0.0, 8.0]),  # and stay between the edges
        ([20.0, 27.0, 34.0], [19.0, 27.0, 35.0]),
        ([10.0, 10.0, 22.0], [6.0, 14.0, 22.0]),
    ],
)
def test_labels_beside_ends_of_lines_keep_their_distance(wanted: list[float], places: list[float]):
    assert spread(wanted, 8.0, 60.0) == pytest.approx(places)


def test_a_spread_that_its_marker_hides_is_not_drawn():
    points = pd.DataFrame(
        {
            "x": [1.0, 2.0],
            "value": [50.0, 50.0],
            "low": [49.9, 30.0],
            "high": [50.1, 50.0],
            "cell_ids": ["a", "b"],
        }
    )
    ax = Style(("fa3",)).panels(["a"], per_row=2, title_lines=1, title_chars=4, legend=[])[1][0]
    ax.set_xlim(0, 3)
    ax.set_ylim(0, 100)
    Style(("fa3",)).line(ax, "fa3", points, "x")
    (bars,) = ax.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[2.0, 30.0], [2.0, 50.0]]]


def test_panels_are_wide_enough_for_their_subtitles():
    figure = Registry("figure").load("sparse_throughput")
    data = figure.data(derived(quick_study()))
    few = draw(figure, data, Style(METHODS))
    long = data.assign(detail=data.detail + " and so much more that no other panel fits beside it" * 2)
    many = draw(figure, long, Style(METHODS))
    height = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)', text)[1]) for text in (few, many)]
    assert height[1] > 1.5 * height[0]


def test_panels_are_wide_enough_for_the_drawings_of_masks_before_their_subtitles():
    """The ends of subtitles lay under the drawing of the next panel."""
    chars = 38  # four panels have room for these alone

    def columns(*pictures: str) -> int:
        style = Style(METHODS, on_page=True, pictures=frozenset(pictures))
        axes = style.panels(["full"] * 8, per_row=4, title_lines=2, title_chars=chars, legend=[])[1]
        return len({ax.get_position().x0 for ax in axes})

    assert (columns(), columns("full")) == (4, 3)


def test_labels_at_ends_of_lines_stay_below_the_title():
    style = Style(("fa3",))
    ax = style.panels(["a"], title_lines=2, label_chars=3, legend=[])[1][0]
    ax.set_ylim(0, 1)
    style.label_ends(ax, [("fa3", "fa3", 1.0)])
    (label,) = ax.texts
    assert label.get_position()[1] + 3.5 <= ax.get_window_extent().height * 72 / ax.figure.dpi


def test_names_have_room():
    assert (
        Style(METHODS).names_in(["a" * 30]) > Style(METHODS).names_in(["a"]) > Style(METHODS).names_in([]) > 0
    )
    assert Style(METHODS).names_in(["a" * 99]) == pytest.approx(0.56 * 11)


def test_long_names_take_several_lines_in_narrow_windows():
    """The beginnings of such names were cut off in drawings for 390 px."""
    name = "block_sparse_variable · mean block 512 · density 0.2 · 64:64 heads · backward"
    (wide,), (narrow,) = (style.wrapped([name]) for style in (Style(METHODS), Style(METHODS).narrow))
    assert wide == name and narrow.split() == name.split() and narrow.count("\n") == 1
    room = Style(METHODS).narrow.names_in([narrow])
    assert max(map(len, narrow.split("\n"))) * 0.062 < room <= 0.56 * Style(METHODS).narrow.width_in
