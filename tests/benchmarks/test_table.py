"""Tests of tables: as Markdown, CSV and inside a page."""

import io
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.text import milliseconds, names, percent
from benchmarks.kernels import adapter_cost
from benchmarks.timer import agreement as timer_agreement
from tests.helpers.support import ROOT
from tools.table import Table, add_options, read_records

TABLE = Table(
    "speed",
    "On some machine.",
    ("what", "ms"),
    (("a", "1.5"), ("b", "–")),
    ({"what": "a", "ms": 1.4999}, {"what": "b", "ms": None}),
    texts=("what",),
)
PAGE = (
    "# Speed\n\n<!-- begin speed -->\nold\n<!-- end speed -->\n\n<!-- begin other -->\n<!-- end other -->\n"
)


def test_markdown() -> None:
    assert TABLE.markdown() == "On some machine.\n\n| what | ms |\n| --- | ---: |\n| a | 1.5 |\n| b | – |\n"


def test_files_hold_what_was_measured(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "new")
    assert (tmp_path / "new/speed.md").read_text() == TABLE.markdown()
    assert read_records(tmp_path / "new", "speed") == [{"what": "a", "ms": "1.4999"}, {"what": "b", "ms": ""}]
    assert read_records(tmp_path, "speed") == []


def test_a_page_changes_between_its_markers_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):
        TABLE.write_into(page)
        assert page.read_text() == PAGE.replace("old\n", TABLE.markdown())


@pytest.mark.parametrize("name", [timer_agreement.NAME, adapter_cost.NAME])
def test_the_page_of_the_timer_has_a_place_for_each(name: str, tmp_path: Path) -> None:
    page = tmp_path / "timer.md"
    page.write_text((ROOT / "docs/results/h200/timer.md").read_text())
    replace(TABLE, name=name).write_into(page)
    assert TABLE.markdown() in page.read_text()


def test_the_first_page_with_a_place_gets_the_table(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    page = tmp_path / "page.md"
    other.write_text("# Other\n")
    page.write_text(PAGE)
    TABLE.write_into(other, page)
    assert other.read_text() == "# Other\n" and TABLE.markdown() in page.read_text()


@pytest.mark.parametrize(
    "text", ["# Speed\n", "<!-- begin speed -->\n", "<!-- end speed -->\n<!-- begin speed -->\n"]
)
def test_a_page_without_a_place_is_left_alone(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="no place"):
        TABLE.write_into(page)
    assert page.read_text() == text


def test_publishes_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    page = tmp_path / "page.md"
    add_options(parser)
    page.write_text(PAGE)
    TABLE.publish(parser.parse_args(["--out", str(tmp_path)]))
    assert (tmp_path / "speed.csv").exists() and page.read_text() == PAGE
    TABLE.publish(parser.parse_args(["--out", str(tmp_path), "--write", str(page)]))
    assert "| a | 1.5 |" in page.read_text()
    assert "1.5" in capsys.readouterr().out


def test_shows_all_columns() -> None:
    text = io.StringIO()
    TABLE.show(Console(file=text, width=80))
    assert all(part in text.getvalue() for part in ("On some machine.", "what", "ms", "1.5", "–"))


def test_numbers_as_tables_show_them() -> None:
    assert (percent(0.0123), percent(-0.0004), percent(0.5, signed=False)) == ("+1.2 %", "-0.0 %", "50.0 %")
    assert [milliseconds(value) for value in (0.05, 1.23456, 12345.6, 250.0)] == [
        "0.05000",
        "1.235",
        "1.235e+04",
        "250.0",
    ]


def test_names_come_in_the_known_order() -> None:
    assert names("c, a", ["a", "b", "c"]) == ["a", "c"]
    for wrong in ("a,x", "", " , "):
        with pytest.raises(ArgumentTypeError, match="is not among a, b"):
            names(wrong, ["a", "b"])
