"""The groups of USP as released: what the exhibit counts, and what it says."""

import pandas as pd
import pytest

from longca.lab.paper.analysis.usp_groups import usp_bytes
from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import PaperTable


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    return usp_bytes()


def test_at_one_node_the_swap_changes_nothing(data: pd.DataFrame) -> None:
    first = data[data.world == 8]
    assert len(first) == 4 and first.ratio.isna().all()
    assert first.released_between.sum() == first.right_between.sum() == 0


def test_bytes_at_sixteen_ranks_are_those_of_a_count_by_hand(data: pd.DataFrame) -> None:
    row = data[(data.world == 16) & (data.direction == "fwd") & (data.heads == "64:8")].iloc[0]
    head = 8192 * 128 * 2  # bytes of one head of a rank's tokens
    assert row.right_between == 2 * 8 * head and row.right_heads_between == 0
    assert row.released_between == row.released_heads_between == 4 * (8 + 1 + 1 + 8) * head, (
        "four peers of a head group are elsewhere"
    )
    assert row.ratio == pytest.approx(4.5)


def test_no_byte_is_lost_by_a_swap(data: pd.DataFrame) -> None:
    assert (data.released_between + data.released_inside).round().tolist() == (
        data.right_between + data.right_inside
    ).round().tolist()


def test_the_findings_are_those_of_the_numbers(data: pd.DataFrame) -> None:
    shown = {exhibit.name: exhibit for exhibit in exhibits()}
    figure = shown["usp_groups"]
    table = shown["usp_groups_table"]
    assert isinstance(table, PaperTable)
    assert set(figure.data(pd.DataFrame()).direction) == {"fwd"} and len(table.data(pd.DataFrame())) == len(
        data
    )
    assert "0.883 to 4.50 times the bytes at 16 to 96 ranks with 64:8 heads" in figure.title(data)
    changed = data.assign(
        ratio=data.ratio.where(data.world != 16, 9.0),
        ratio_busiest=data.ratio_busiest.where(data.world != 16, 9.0),
    )
    assert "0.883 to 9.00 times" in figure.title(changed) and figure.effects(changed)[12].startswith(
        figure.title(changed)
    )
    assert "in 16 of 24 cases the busiest rank sends more" in table.title(data)
    assert "in 18 of 24 cases the busiest rank sends more" in table.title(changed)
    cells = table.cells(data)
    assert len(cells.rows) == len(data) and all(len(row) == len(cells.header) for row in cells.rows)
