"""Exported files hold the records, and the same records give the same bytes."""

import csv
import io
import json
import math

import pandas as pd
import pyarrow.parquet as pq
import pytest

from longca.core.errors import UserError
from longca.lab.store.columns import COLUMNS
from longca.lab.store.export import NUMBER, csv_bytes, export, frame_csv, record_json
from longca.lab.store.files import replace_file
from longca.lab.store.load import load
from longca.lab.store.table import derived
from longca.lab.studies.outcome import Incorrect
from longca.lab.studies.record import SCHEMA_VERSION, Accuracy
from tests.helpers.records import quick_study, record


@pytest.fixture(scope="module")
def records():
    return quick_study()[::7]


def test_parquet_holds_every_record_whole(records, tmp_path):
    parquet, _, as_json = export(records, tmp_path / "new" / "folder")
    for path in (parquet, as_json):
        loaded = load(path)
        assert not loaded.problems
        assert sorted(map(record_json, loaded.records)) == sorted(map(record_json, records))


def test_parquet_says_what_wrote_it_and_has_flat_columns(records, tmp_path):
    table = pq.read_table(export(records, tmp_path)[0])
    assert table.schema.metadata[b"longca.schema_version"] == str(SCHEMA_VERSION).encode()
    assert b"longca.version" in table.schema.metadata
    assert table.column_names == [*(column.name for column in COLUMNS), "record"]
    row = table.slice(0, 1).to_pylist()[0]
    assert row["cell_id"] == json.loads(row["record"])["cell_id"]


def test_csv_has_one_line_a_record(records, tmp_path):
    path = export(records, tmp_path)[1]
    assert path.read_text().count("\n") == len(records) + 1
    with path.open(newline="") as file:
        content = list(csv.DictReader(file))
    assert {row["cell_id"] for row in content} == {entry.cell_id for entry in records}
    timed = next(row for row in content if row["status"] == "ok")
    assert len(timed["samples_ms"].split(" ")) == int(timed["num_samples"]) and timed["is_control"] in (
        "true",
        "false",
    )


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|'/C calc'!A0", "-2+3", "@SUM(A1)", " \t=1", "\n@x", "＝1", "-", "-1.5 apples", '="a,b"'],
)
def test_a_spreadsheet_runs_no_cell(records, tmp_path, text):
    """Not in the table of records, nor in any other one."""
    path = export([records[0].model_copy(update={"study": text, "run_id": text})], tmp_path)[1]
    for content in (path.read_bytes(), frame_csv(pd.DataFrame({text: [text]})), csv_bytes([text], [[text]])):
        for cell in (
            next(csv.reader(io.StringIO(content.decode()))),
            *csv.reader(io.StringIO(content.decode())),
        ):
            assert all(not value.startswith(tuple("=+-@＝")) or NUMBER.fullmatch(value) for value in cell), (
                "a negative number runs nothing"
            )
    assert "'" + " ".join(text.split()) in next(csv.DictReader(io.StringIO(path.read_text()))).values()


def test_numbers_and_other_text_stay_as_they_are():
    values = [
        -1.5,
        -3,
        "-1.5",
        "+2",
        "-.5e-3",
        -0.0,
        float("-inf"),
        "a=b",
        "1-2",
        "–",
        (-1.0, 2.0),
        None,
        True,
    ]
    names, line = csv.reader(io.StringIO(csv_bytes(map(str, range(len(values))), [values]).decode()))
    assert (
        line
        == ["-1.5", "-3", "-1.5", "+2", "-.5e-3", "-0.0", "-inf", "a=b", "1-2", "–", "-1.0 2.0", "", "true"]
        and len(names) == 13
    )


def test_a_cell_of_more_operations_than_64_bits_count(records, tmp_path):
    attention = next(
        entry
        for entry in records
        if entry.mask and not entry.work and "density" not in entry.cell.mask_params
    )
    cell = attention.cell.model_copy(
        update={"seqlen": 1 << 24, "num_q_heads": 64, "num_kv_heads": 8, "head_dim": 128}
    )
    first = record(cell).model_copy(
        update={"mask": attention.mask.model_copy(update={"area": 1 << 48, "num_groups": 1})}
    )
    row = pq.read_table(export([first], tmp_path)[0]).to_pylist()[0]
    assert row["flops"] >= 2.0**63 and row["flops"] == derived([first])["flops"][0]


def test_same_records_same_bytes(records, tmp_path):
    for first, other in zip(
        export(records, tmp_path / "a"), export(records[::-1], tmp_path / "b"), strict=True
    ):
        assert first.read_bytes() == other.read_bytes()


def test_no_records_are_exported_too(tmp_path):
    parquet, table, _ = export([], tmp_path)
    assert load(parquet).records == [] and table.read_text().count("\n") == 1


def test_infinite_and_undefined_errors_survive(tmp_path):
    accuracy = Accuracy(
        reference="float64",
        scope="all",
        relative={"out": math.inf},
        max_abs={"out": math.nan},
        budget={"out": 0.1},
    )
    wrong = record(quick_study()[0].cell, Incorrect(reason="out is infinite"), accuracy=accuracy)
    for path in export([wrong], tmp_path)[::2]:
        loaded = load(path)
        assert not loaded.problems
        assert math.isinf(loaded.records[0].accuracy.relative["out"]) and math.isnan(
            loaded.records[0].accuracy.max_abs["out"]
        )


def test_files_are_replaced_at_once_and_only_if_they_differ(tmp_path):
    path = replace_file(tmp_path / "file", b"one")
    before = path.stat()
    assert replace_file(path, b"one").stat().st_ino == before.st_ino
    assert replace_file(path, b"two").read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write '.*records\.parquet'"):
        export([], tmp_path / "file")
