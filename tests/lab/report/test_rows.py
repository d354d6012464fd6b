"""The records as data of the page: all of them, or some of very many."""

import re

import pytest

from longca.lab.report import rows
from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data, unpacked
from longca.lab.report.rows import anchors
from tests.helpers.records import quick_study
from tests.helpers.report.few import few
from tests.helpers.report.outline import Outline


def test_its_data_hold_every_record(text):
    data = page_data(text, "data")
    count = len(quick_study())
    assert len(set(unpacked(data["anchor"], count))) == count
    assert data["timer"]["names"] == ["monotonic", ""] and data["dtype"] == {"every": "bf16"}
    row = unpacked(data["status"], count).index("incorrect")
    numbers = {name: unpacked(data[name], count) for name in ("rate", "ms", "rate_order", "ms_order")}
    assert [values[row] for values in numbers.values()] == ["", "", None, None] and all(
        map(any, numbers.values())
    )


@pytest.mark.long
def test_a_page_of_very_many_records_holds_some_of_them_and_says_so(tmp_path, monkeypatch):
    """Every record with twenty more draws: numbers are of all, the table has those that the page links to and
    some of each case."""
    monkeypatch.setattr(rows, "MOST_ROWS", 80)
    drawn = [entry for entry in few() if entry.cell.kind == "kernel" and entry.work is None]
    many = [*few(), *(_another_draw(entry, seed) for entry in drawn for seed in range(1, 21))]
    assert len(many) > 200
    page = build(many, [], tmp_path / "report.html", study_title="x")
    text = page.read_text(encoding="utf-8")
    data = page_data(text, "data")
    facts = page_data(text, "facts")
    held = set(unpacked(data["anchor"], 80))
    assert (
        len(held) == 80 and f"This page holds 80 of {len(many)} records" in text and facts["all"] == len(many)
    )
    assert {link.removeprefix("#cell-") for link in Outline(text).links if link.startswith("#cell-")} <= held
    assert {_case(entry) for entry in many} == {_case(entry) for entry in many if entry.cell_id in held}
    assert re.search(r"\d+\+?[\d+]*/21", " ".join(facts["rows"])), (
        "a point of 21 cells says how many of them are here"
    )
    assert "of them as dots" in text
    csv = (tmp_path / "figures/accuracy.csv").read_text().count("\n")
    assert csv - 1 == sum(entry.accuracy is not None and entry.work is None for entry in many), (
        "files have them all"
    )


def _case(entry):
    cell = entry.cell
    return cell.method, cell.mask, str(cell.mask_params), cell.direction, cell.seqlen, entry.outcome.status


def _another_draw(entry, seed):
    cell = entry.cell.model_copy(update={"seed": seed})
    cell.__dict__.pop("cell_id", None)
    return entry.model_copy(update={"cell": cell, "cell_id": cell.cell_id})


def test_a_cell_measured_twice_has_two_anchors():
    assert anchors(["a", "b", "a"]) == ["a", "b", "a-2"]
