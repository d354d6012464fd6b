"""Records are found wherever they lie, and what cannot be read is named."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longca.core.errors import UserError
from longca.lab.store.cells import CellStore
from longca.lab.store.decode import Decoder
from longca.lab.store.export import export, record_json
from longca.lab.store.load import load, load_columns
from tests.helpers.records import quick_study

MEASURED = Path(__file__).parents[3] / "reports/h200/h200-cp.parquet"


@pytest.fixture(scope="module")
def records():
    return quick_study()[:4]


@pytest.fixture
def folder(records, tmp_path):
    store = CellStore(tmp_path / "quick")
    for record in records:
        store.write(record)
    return store.folder


def test_committed_records_of_strategies_keep_their_cells_and_ids():
    """They are from before cells had parameters of strategies. `Record` itself holds each id against its
    cell."""
    texts = pq.read_table(MEASURED, columns=["record"])["record"].to_pylist()[::40]
    asked = [json.loads(text)["cell"] for text in texts]
    decoder = Decoder()
    records = [decoder.decode(text.encode()) for text in texts]
    assert sum(cell["kind"] == "cp" for cell in asked) > 10
    assert [json.loads(record.cell.model_dump_json()) for record in records] == asked
    assert all(not record.cell.strategy_params and "[" not in record.cell.method for record in records)
    later = load_columns([MEASURED], ["strategy_params", "input_values", "sustained"])[0]
    assert later.drop_duplicates().to_numpy().tolist() == [["", "normal", False]], (
        "columns that the file does not have"
    )


def test_a_folder_of_cells(records, folder):
    loaded = load(folder)
    assert {record.cell_id for record in loaded.records} == {
        record.cell_id for record in records
    } and not loaded.problems


def test_damaged_cells_are_named_and_the_rest_is_read(records, folder):
    path = CellStore(folder).path(records[0].cell_id)
    path.write_text(path.read_text()[:100])
    loaded = load(folder)
    assert len(loaded.records) == 3 and [problem.path for problem in loaded.problems] == [path]


def test_several_sources_hold_a_record_once(records, folder, tmp_path):
    parquet = export(records[:2], tmp_path / "elsewhere")[0]
    assert len(load(folder, parquet).records) == 4
    again = records[0].model_copy(update={"run_id": "later"})
    assert len(load(folder, export([again], tmp_path / "later")[0]).records) == 5


def test_a_folder_with_nothing_but_the_export(records, tmp_path):
    export(records, tmp_path)
    assert len(load(tmp_path).records) == 4


def test_a_folder_without_results_holds_no_records(tmp_path):
    assert load(tmp_path / "never").records == []


@pytest.mark.long
def test_a_changed_byte_of_a_parquet_file_changes_no_record(records, tmp_path):
    path = export(records, tmp_path)[0]
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        loaded = load(path)
        assert loaded.problems or sorted(map(record_json, loaded.records)) == sorted(
            map(record_json, records)
        ), place


def test_a_table_that_pandas_has_written_holds_the_same_records(records, tmp_path):
    export(records, tmp_path)
    pd.read_parquet(tmp_path / "records.parquet").to_parquet(tmp_path / "again.parquet")
    again = load(tmp_path / "again.parquet")
    assert again.records == load(tmp_path / "records.parquet").records
    assert not again.problems


def test_rows_that_cannot_be_read_are_named(records, tmp_path):
    old = json.dumps({**json.loads(record_json(records[0])), "schema_version": 0})
    wrong = json.dumps({**json.loads(record_json(records[0])), "seconds": "long"})
    rows = [record_json(records[1]), old, "{", wrong, None, "[1]"]
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"record": pa.array(rows, pa.string())}), path)
    loaded = load(path)
    assert [record.cell_id for record in loaded.records] == [records[1].cell_id]
    reasons = [problem.reason for problem in loaded.problems]
    assert reasons[0] == "row 2 has schema version 0, this longca reads 1 to 3"
    assert reasons[1].startswith("row 3 is damaged") and "seconds" in reasons[2] and len(reasons) == 5
    assert {problem.path for problem in loaded.problems} == {path}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("records.parquet", b"PAR1 and then nothing"),
        ("records.json", b"{"),
        ("records.json", b"[]"),
        ("records.json", b'{"records": 3}'),
    ],
)
def test_damaged_files_are_problems(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    loaded = load(tmp_path / name)
    assert loaded.records == [] and len(loaded.problems) == 1


def test_parquet_of_something_else(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    assert len(load(tmp_path / "other.parquet").problems) == 1


def test_what_is_not_there_or_no_results_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        load(tmp_path / "records.parquet")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match="holds no records"):
        load(tmp_path / "notes.txt")


def test_brackets_without_end_are_no_crash(tmp_path):
    path = tmp_path / "records.json"
    path.write_text("[" * 100_000)
    assert "is damaged" in load(path).problems[0].reason
