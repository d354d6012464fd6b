"""Tables of commands in a terminal of 80 columns."""

import pytest

from longca.lab.cli.options import print_table

COLUMNS = ["method", "cells", "not run", "GPU hours", "memory", "too large"]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_headings_break_between_words_before_anything_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "torch_cp_alltoall+torch_flash"
    print_table("", COLUMNS, [[name, 1008, 12, "1.23", "7.20 GiB", 700]])
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(lines).split()
    assert max(map(len, lines)) <= 80 and {name, "1,008", "not", "run", "hours", "large"} <= set(words)


def test_a_table_that_fits_keeps_its_headings_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", COLUMNS, [["sdpa", 10, 2, "1.23", "7.20 GiB", 7]])
    assert any(all(name in line for name in COLUMNS) for line in capsys.readouterr().out.splitlines())


def test_a_table_without_rows_has_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", ["a heading of many words"] * 5, [])
    assert capsys.readouterr().out.split().count("heading") == 5
