"""`longca.load`: records of studies, folders and files as a frame that knows its units."""

from pathlib import Path

import pytest

import longca
from longca.core.errors import UserError
from longca.lab.store import load as store
from longca.lab.store.cells import CellStore
from longca.lab.store.columns import COLUMNS
from longca.lab.store.export import export
from tests.helpers.records import quick_study
from tests.helpers.support import TINY

RECORDS = quick_study()[:6]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of a study `quick`, beside its YAML file."""
    monkeypatch.chdir(tmp_path)
    store = CellStore(tmp_path / "results" / "quick")
    for record in RECORDS:
        store.write(record)
    (tmp_path / "config/studies").mkdir(parents=True)
    (tmp_path / "config/studies/quick.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def test_a_study_a_folder_and_a_file_are_the_same_records(folder: Path):
    frame = longca.load("quick")
    export(RECORDS, folder / "exported")
    assert list(frame.columns) == [column.name for column in COLUMNS] and len(frame) == len(RECORDS)
    assert set(frame.cell_id) == {record.cell_id for record in RECORDS}
    for sources in (
        ["results/quick"],
        [folder / "exported"],
        ["exported/records.json"],
        ["quick", "exported/records.parquet"],
    ):
        assert longca.load(*sources).equals(frame)


def test_units_and_meanings_stand_with_the_frame(folder: Path):
    frame = longca.load("quick")
    assert frame.attrs["units"]["time_ms_median"] == "ms" and set(frame.attrs["units"]) == set(frame.columns)
    assert frame.attrs["meanings"]["seed"] == "Seed of random values in the mask"
    assert frame[frame.status == "ok"].attrs == frame.attrs


def test_own_records_stand_for_a_study_that_was_not_measured_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "COMMITTED", folder / "own")
    with pytest.raises(UserError, match=r"no records of its own\. Give a study"):
        longca.load()
    export(RECORDS[:2], folder / "exported")
    (folder / "own/h100").mkdir(parents=True)
    (folder / "exported/records.parquet").rename(folder / "own/h100/theirs.parquet")
    assert len(longca.load("theirs")) == len(longca.load()) == 2


def test_damaged_rows_are_told(folder: Path):
    next((folder / "results/quick/cells").rglob("*.json")).write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="1 source of records could not be read, first .*json"):
        assert len(longca.load("quick")) == len(RECORDS) - 1


def test_damaged_records_alone_are_not_called_missing(folder: Path):
    for file in (folder / "results/quick/cells").rglob("*.json"):
        file.write_text("{", encoding="utf-8")
    with (
        pytest.warns(UserWarning),
        pytest.raises(UserError, match=r"There are no records .*json: is damaged"),
    ):
        longca.load("quick")


@pytest.mark.parametrize(
    ("source", "message"),
    [("quik", "quik"), ("nowhere.parquet", "There is no file 'nowhere.parquet'"), ("config", "config")],
)
def test_what_is_not_there(folder: Path, source: str, message: str):
    with pytest.raises(UserError, match=message) as error:
        longca.load(source)
    assert "\n" not in str(error.value)


def test_a_study_without_records(folder: Path):
    (folder / "config/studies/new.yaml").write_text(TINY, encoding="utf-8")
    with pytest.raises(UserError, match=r"There are no records in 'results/new'\. Measure first"):
        longca.load("new")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "A source of records cannot be 3. Give the name of a study, a folder of results or a file"),
        (None, "A source of records cannot be None. Give the name of a study"),
        (["quick"], r"cannot be \['quick'\]. Give each as an argument of its own: longca.load\(\*sources\)"),
    ],
)
def test_what_is_no_source_is_refused_in_a_line(source: object, message: str):
    with pytest.raises(UserError, match=message) as error:
        longca.load(source)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
