"""Panels of a figure: in narrow windows, and their lines."""

import xml.etree.ElementTree as ElementTree

import pandas as pd

from longca.core.plugin import Registry
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw
from longca.lab.report.panels import runs_of_protocols
from tests.helpers.ranking.measured import point
from tests.helpers.report.figures import METHODS


def test_panels_have_one_drawing(drawing):
    assert drawing("throughput_forward").narrow_svg == ""


def test_panels_move_in_narrow_windows(quick, drawing):
    """A drawing has its panels once; a standalone file knows nothing of windows."""
    figure = Registry("figure").load("throughput_forward")
    data = figure.data(quick)
    own = drawing("throughput_forward")
    panels = [group for group in ElementTree.fromstring(own.svg).iter("g") if group.get("data-panel")]
    moved = [group for group in panels if "--y" in group.get("style", "")]
    assert len(panels) > len(moved) > 0 and own.narrow_size.width < own.narrow_size.full_width
    assert "--y" not in draw(figure, data, Style(METHODS)) and "shift" not in draw(
        figure, data, Style(METHODS)
    )


def test_a_line_is_interrupted_between_calls_with_rests_and_without():
    rested = [False, False, True, False]
    line = pd.DataFrame(
        {"seqlen": [1024, 2048, 4096, 8192], "point": [point("a", 1.0, rests=rests) for rests in rested]}
    )
    assert [list(run.seqlen) for run in runs_of_protocols(line)] == [[1024, 2048], [4096], [8192]]
    assert [len(run) for run in runs_of_protocols(line[:2])] == [2]
    assert [len(run) for run in runs_of_protocols(line.drop(columns="point"))] == [4]
    assert [len(run) for run in runs_of_protocols(line[:0])] == [0]
