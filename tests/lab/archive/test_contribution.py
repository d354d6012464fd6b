"""`longca records check`: what a file of records must be before it is contributed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from longca.lab.archive import contribution
from longca.lab.archive.contribution import RecordCheck, check_records
from longca.lab.store.export import export
from longca.lab.store.load import Loaded
from longca.lab.studies.record import Record
from longca.lab.studies.study import load_study
from tests.helpers.records import record

STUDY = """
title: A contribution
grids:
  - {kernel: naive, mask: causal, seqlen: [64, 128], heads: "2:1", head_dim: 16, dtype: bf16, direction: [fwd, bwd]}
  - {kernel: [control, matmul, device_copy], mask: full, seqlen: 512, heads: "2:1", head_dim: 16, dtype: bf16, direction: fwd}
"""  # noqa: E501
GPU = "NVIDIA L40S"
"""a model of which the project has no records"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Records that could be contributed, but for the listings of their software."""
    path = tmp_path_factory.mktemp("contributed") / "theirs.yaml"
    path.write_text(STUDY)
    records = [record(cell, gpu=GPU) for cell in load_study(str(path)).cells()]
    return [*records, *(entry.model_copy(update={"repeat": True}) for entry in records if entry.work is None)]


def checked(records: list[Record], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, RecordCheck]:
    monkeypatch.setattr(contribution, "committed", list)
    monkeypatch.setattr(contribution, "load", lambda: Loaded([], []))
    export(records, folder)
    return {check.name: check for check in check_records(folder / "records.parquet")}


def test_whole_records_pass(whole: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checks = checked(whole, tmp_path, monkeypatch)
    assert {name for name, check in checks.items() if check.state == "failed"} == {"environment"}
    assert all("digests of the software" in line for line in checks["environment"].lines)
    assert "reports/l40s" in checks["GPU"].detail and "pairs" in checks["A/A"].detail


def _all(**fields: object) -> Callable[[list[Record]], list[Record]]:
    return lambda records: [entry.model_copy(update=fields) for entry in records]


@pytest.mark.parametrize(
    ("change", "name", "line"),
    [
        (lambda records: [*records, records[0]], "duplicates", "1 record more than once"),
        (
            lambda records: [entry for entry in records if entry.cell.kernel != "matmul"],
            "controls",
            "record of matmul",
        ),
        (lambda records: [entry for entry in records if not entry.repeat], "A/A", "repeats some by itself"),
        (
            lambda records: [record(records[0].cell, gpu="NVIDIA H200"), *records[1:]],
            "GPU",
            "a file of their own",
        ),
        (_all(environment=None), "GPU", "CPUs"),
        (_all(schema_version=2), "schema", "earlier longca"),
    ],
    ids=["twice", "control", "repeats", "mixed", "unknown", "schema"],
)
def test_what_is_refused(
    whole: list[Record],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[Record]], list[Record]],
    name: str,
    line: str,
):
    checks = checked(change(whole), tmp_path, monkeypatch)
    assert checks[name].state == "failed" and line in " ".join(checks[name].lines)


def test_a_changed_number_fails(whole: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export(whole, tmp_path)
    content = json.loads((tmp_path / "records.json").read_text())
    content["records"][0]["seconds"] += 1
    (tmp_path / "changed.json").write_text(json.dumps(content))
    monkeypatch.setattr(contribution, "committed", list)
    monkeypatch.setattr(contribution, "load", lambda: Loaded([], []))
    [first, *_] = check_records(tmp_path / "changed.json")
    assert first.state == "failed" and "row 1" in first.lines[0]


@pytest.mark.parametrize(
    "is_alone", [True, pytest.param(False, marks=pytest.mark.long, id="beside the committed records")]
)
def test_the_command_says_each_check_and_its_exit_code(
    longca, whole: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
):
    if is_alone:
        monkeypatch.setattr(contribution, "committed", list)
        monkeypatch.setattr(contribution, "load", lambda: Loaded([], []))
    export(whole[:2], tmp_path)
    done = longca("records", "check", tmp_path, "--json")
    assert done.returncode == 1
    assert {check["name"] for check in json.loads(done.stdout)["checks"]} >= {
        "records",
        "controls",
        "A/A",
        "duplicates",
    }
    for name in ("nothing.parquet", "no-folder"):
        refused = longca("records", "check", tmp_path / name)
        assert refused.returncode == 2 and "There is no file" in refused.stderr
