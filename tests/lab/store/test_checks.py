"""A record that contradicts itself, or is not as it was written, is damaged in every kind of file."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longca.lab.store.cells import CellStore
from longca.lab.store.checks.record import checksum_of_content, contradiction
from longca.lab.store.decode import encode
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.studies.record import SCHEMA_VERSION, Record
from tests.helpers.records import quick_study

OK = next(
    record for record in quick_study() if record.outcome.status == "ok" and record.cell.direction == "fwd"
)


def changed(path: str, value: Any, **fields: Any) -> dict[str, Any]:
    """The record's JSON with another value in one place, and the checksum of that."""
    content = json.loads(encode(OK))
    content.pop("checksum")
    *way, last = path.split(".")
    part = content
    for key in way:
        part = part[key]
    part[last] = value
    content |= fields
    return content | {"checksum": checksum_of_content(content)}


def problems(folder: Path, content: dict[str, Any]) -> list[str]:
    """The messages about a cell's file, a Parquet file and a JSON file of that record."""
    store = CellStore(folder)
    path = store.path(OK.cell_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")))
    pq.write_table(
        pa.table({"record": [json.dumps(content, separators=(",", ":"))]}), folder / "records.parquet"
    )
    (folder / "records.json").write_text(json.dumps({"records": [content]}))
    loaded = [load(folder), load(folder / "records.parquet"), load(folder / "records.json")]
    assert all(len(each.records) + len(each.problems) == 1 for each in loaded)
    return [each.problems[0].reason if each.problems else "" for each in loaded]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("accuracy.relative.out", 1.0, "its error of out is 1.00e+00, where"),
        ("accuracy.relative.out", "NaN", "its error of out is nan"),
        ("accuracy.relative.out", -1.0, "its error of out is -1.00e+00"),
        ("accuracy.relative", {}, "its error of out is not known"),
        ("accuracy.budget", {}, "no error of it was judged"),
        ("accuracy.budget.out", "Infinity", "its budget of out is inf"),
        ("accuracy.worst_row", {"out": 1.5}, "a row of out is off by 1.5 times"),
        ("accuracy.worst_part", {"out": 1.5}, "a part of out is off by 1.5 times"),
        ("accuracy.empty_rows_ok", False, "its rows without keys are wrong"),
        ("samples.time_ms", [[1.0], [1.0]], "has samples of 2 of 1 ranks"),
        ("samples.time_ms", [[-1.0]], "time_ms"),
        ("samples.time_ms", [["NaN"]], "time_ms"),
        ("samples.time_ms", [[]], "time_ms"),
        ("samples", None, "needs samples"),
    ],
)
@pytest.mark.parametrize("schema", [1, SCHEMA_VERSION])
def test_an_ok_record_whose_numbers_say_otherwise_is_damaged(tmp_path, path, value, reason, schema):
    for said in problems(tmp_path, changed(path, value, schema_version=schema)):
        assert "is damaged" in said and reason in said


@pytest.mark.parametrize("schema", [1, SCHEMA_VERSION])
def test_only_records_of_an_old_schema_may_be_without_a_checksum(tmp_path, schema):
    content = changed("seconds", 1.0, schema_version=schema)
    assert problems(tmp_path, content) == [""] * 3
    content.pop("checksum")
    said = problems(tmp_path, content)
    assert (
        said == [""] * 3
        if schema == 1
        else all(each.endswith("is damaged (it has no checksum)") for each in said)
    )


@pytest.mark.parametrize(
    ("path", "value", "later"),
    [
        ("measure", {"repeats": 3}, "what was asked"),
        ("accuracy.seed", 7, "a seed of its checks"),
        ("samples.warm_seconds", 1.0, "seconds of warming up"),
        ("mask.lengths", {"documents": {"count": 1, "lengths": [8], "digest": "0" * 64}}, "sampled lengths"),
    ],
)
def test_an_early_number_does_not_spare_a_record_its_checksum(tmp_path, path, value, later):
    content = changed(path, value, schema_version=1)
    content.pop("checksum")
    told = f"is damaged (it calls itself a record of schema 1, and has {later}, which came later)"
    assert all(reason.endswith(told) for reason in problems(tmp_path, content))


def test_a_record_that_was_changed_is_damaged_in_exported_files_too(tmp_path):
    content = changed("seconds", 1.0) | {"run_id": "another"}
    assert all("its checksum says otherwise" in said for said in problems(tmp_path, content))


def test_what_was_exported_comes_back_with_its_checksums(tmp_path):
    records = quick_study()
    old = [Record.model_validate(record.model_dump() | {"schema_version": 1}) for record in records]
    for name, written in (("new", records), ("old", old)):
        table, _, plain = export(written, tmp_path / name)
        for path in (table, plain):
            assert not load(path).problems and len(load(path).records) == len(written)
        assert (b"checksum" in plain.read_bytes()) == (name == "new")
        assert all(
            ("checksum" in text) == (name == "new") for text in pq.read_table(table)["record"].to_pylist()
        )


def test_records_that_are_not_ok_say_what_they_say():
    assert {contradiction(record) for record in quick_study()} == {None}
    assert any(record.outcome.status == "incorrect" for record in quick_study())
