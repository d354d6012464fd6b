"""Panels of a figure in narrow windows."""

import xml.etree.ElementTree as ElementTree

from longca.core.plugin import Registry
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw
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
