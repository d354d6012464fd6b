"""Predictions as columns: whole settings of many cells."""

import pytest

from longca.lab.report.decide.predicted import TOGETHER, first_rows
from longca.lab.store.table import derived
from longca.lab.studies.record import Record
from tests.helpers.cp.recorded import whole_settings


@pytest.fixture
def records() -> list[Record]:
    return list(whole_settings())


def test_of_many_cells_whole_settings_are_predicted(records):
    table = derived(records)
    assert len(first_rows(table)) == len(table)
    settings = table.iloc[first_rows(table, 12)].groupby(TOGETHER).size()
    assert settings.tolist() == [5, 5], "another one has no room"
