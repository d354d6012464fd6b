"""The exhibit of predicted throughput: its data are the committed predictions, and it needs no records."""

import pandas as pd
import pytest

from longca.core.plugin import Registry
from longca.lab.advice.many_gpus import load
from longca.lab.paper.contract import PaperFigure
from longca.lab.report.look.style import Style
from longca.lab.store.table import derived


@pytest.fixture(scope="module")
def exhibit() -> PaperFigure:
    return Registry("paper_figure").load("cp_predicted")


@pytest.fixture(scope="module")
def data(exhibit: PaperFigure) -> pd.DataFrame:
    return exhibit.data(derived([]))


def test_its_data_are_the_committed_predictions(data: pd.DataFrame):
    known = [entry for entry in load() if entry.network_factor == 1]
    assert len(data) == len(known) == 4 * 6 * 5 * 2
    assert sorted(data.value.dropna()) == sorted(entry.tflops for entry in known if entry.tflops is not None)
    assert ((data.low <= data.value) & (data.value <= data.high)).all() and not data.cell_ids.any()
    assert not (
        data.unit == "TFLOP/s"
    ).any()  # else it would be compared with published rates of measured cells


def test_it_says_that_it_is_predicted_and_who_is_first(exhibit: PaperFigure, data: pd.DataFrame):
    title = exhibit.title(data)
    for direction, word in (("fwd", "forward"), ("bwd", "backward")):
        here = data[(data["mask"] == "causal_document") & (data.direction == direction) & (data.world == 96)]
        best = here.loc[here.value.astype(float).idxmax()]
        assert f"{word} {best.strategy} with {best.value:.0f} TFLOP/s" in title
        assert f"first in {best.first_in:.0f} of 8 draws" in title
    assert (
        title.startswith("Predicted")
        and exhibit.predicted
        and not exhibit.needs_records
        and "nobody has measured it" in exhibit.caption
    )
    slower = data.assign(value=data.value.where(data.strategy != "usp", 1.0))
    assert exhibit.title(slower) != title


def test_it_names_its_methods_so_that_the_page_has_colours_for_them(exhibit: PaperFigure, data: pd.DataFrame):
    assert set(exhibit.methods) == set(data.method)
    assert len(exhibit.draw(data, Style(exhibit.methods, on_page=True)).axes) == 8
