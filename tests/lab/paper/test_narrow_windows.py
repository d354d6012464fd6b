"""Figures of the study's page in a window of 390 px: they move as other figures' panels do,
and the page has their legends."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.look import NARROW_IN, POINTS, Inline, Style, inline
from longca.lab.report.series import labelled
from longca.lab.store.table import derived
from tests.helpers.committed import committed

STUDIES = {"power": "power", "as_released": "as-released", "usp_groups": ""}  # figure → study of its records


@pytest.fixture(scope="module", params=STUDIES)
def figure(request: pytest.FixtureRequest) -> tuple[PaperFigure, pd.DataFrame]:
    study = STUDIES[request.param]
    table = labelled(derived(committed(study))) if study else pd.DataFrame()
    (found,) = (exhibit for exhibit in exhibits() if exhibit.name == request.param)
    assert isinstance(found, PaperFigure)
    return found, found.data(table)


def drawn(figure: tuple[PaperFigure, pd.DataFrame]) -> Inline:
    methods = tuple(sorted(set(figure[1].get("method", figure[1].get("kernel", [])))))
    return inline(*figure, Style(methods, on_page=True), "A", "")


def test_panels_move_and_stay_in_the_drawing(figure: tuple[PaperFigure, pd.DataFrame]) -> None:
    drawing = drawn(figure)
    assert drawing.narrow_size and drawing.narrow_size.width <= NARROW_IN * POINTS
    panels = [group for group in ElementTree.fromstring(drawing.svg).iter("g") if group.get("data-panel")]
    moved = [group for group in panels if "--y" in group.get("style", "")]
    assert not drawing.narrow_svg and len(panels) > len(moved) > 0


def test_signs_are_the_page_s_and_differ(figure: tuple[PaperFigure, pd.DataFrame]) -> None:
    """Filled and hollow marks mean different things, whatever their words are."""
    signs = [key for key in drawn(figure).keys if key.kind == "sign"]
    assert len({(key.marker, key.colour, key.is_hollow) for key in signs}) == len(signs) > 1
