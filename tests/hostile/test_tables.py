"""Tables whose columns were damaged at random or forged: each command answers by the samples, or refuses the
file in one line."""

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import longca
from longca.core.errors import UserError
from longca.lab.store.checks.columns import checked_columns
from longca.lab.store.columns import COLUMNS
from longca.lab.store.export import export
from longca.lab.store.load import COMMITTED, load
from longca.lab.store.parquet import RECORD_COLUMN
from longca.lab.store.rows.load import load_rows
from tests.helpers.hostile.fuzzing import told
from tests.helpers.records import gpu_study, record
from tests.helpers.support import examples
from tools import verified_tables

pytestmark = pytest.mark.long

ODD: list[Any] = [
    None,
    -1,
    0,
    2**63 - 1,
    -2.5,
    1e300,
    float("nan"),
    float("inf"),
    True,
    "",
    "nobody",
    "bwdd",
    "\x1b]0;x\x07\x1b[31mRED",
    "\u202e<script>",
    "9" * 500,
    [1.0],
    [],
]
QUESTION = ["-s", "4K", "--json"]


@cache
def sound() -> pa.Table:
    """Some records of the made GPU study, as `longca export` writes them."""
    records = [
        each for each in gpu_study() if each.cell.seqlen == 4096 and each.cell.mask in ("causal", "full")
    ]
    with tempfile.TemporaryDirectory() as folder:
        return pq.read_table(export(records, Path(folder))[0])


@cache
def times() -> dict[str, float]:
    return dict(zip(sound()["cell_id"].to_pylist(), sound()["time_ms_median"].to_pylist(), strict=True))


def damaged(name: str, way: str, value: Any, share: int) -> pa.Table:
    """The table with one column damaged in every so many rows."""
    table = sound()
    place = table.column_names.index(name)
    column = table[name]
    if way == "gone":
        return table.remove_column(place)
    if way == "twice":
        return pa.concat_tables([table, table])
    if way == "turned":
        values = column.to_pylist()[::-1]
    else:
        values = [value if row % share == 0 else old for row, old in enumerate(column.to_pylist())]
    try:
        array = pa.array(values, column.type)
    except (pa.ArrowException, OverflowError):
        array = pa.array([None if each is None else str(each) for each in values])  # a column of another type
    return table.set_column(place, name, array)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "records.parquet"


@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(sound().column_names)),
    st.sampled_from(["odd", "odd", "odd", "turned", "twice", "gone"]),
    st.sampled_from(ODD),
    st.sampled_from([1, 3]),
)
def test_each_command_answers_by_the_samples_or_in_one_line(
    file: Path, name: str, way: str, value: Any, share: int
):
    pq.write_table(damaged(name, way, value, share), file)
    chosen = told("choose", "causal", file, *QUESTION)
    if chosen.returncode == 0:
        methods = json.loads(chosen.stdout)["rankings"][0]["methods"]
        assert methods and all(
            method["time_ms"] == pytest.approx(times()[method["cell_id"]]) for method in methods
        )
    for command in (
        ("claims", file),
        ("compare", file, file),
        ("advise", "-m", "causal", "-w", 1, "--records", file),
    ):
        done = told(*command)
        assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    try:
        with warnings.catch_warnings(action="ignore"):
            frame = longca.load(file)
    except UserError:
        return
    assert all(
        frame.time_ms_median.dropna()
        == [times()[cell] for cell in frame.cell_id[frame.time_ms_median.notna()]]
    )


def test_forged_speeds_turn_no_answer(file: Path):
    table = sound()
    names = [
        column.name for column in checked_columns() if column.type == "float" and "tflops" in column.name
    ]
    for name in names:
        forged = [
            value and value * 10 if kernel == "sdpa" else value
            for value, kernel in zip(table[name].to_pylist(), table["kernel"].to_pylist(), strict=True)
        ]
        table = table.set_column(table.column_names.index(name), name, pa.array(forged, pa.float64()))
    pq.write_table(table, file)
    chosen = told("choose", "causal", file, *QUESTION)
    answer = json.loads(chosen.stdout)
    assert all(
        method["time_ms"] == pytest.approx(times()[method["cell_id"]])
        for method in answer["rankings"][0]["methods"]
    )
    assert "is damaged (its tflops is" in answer["problems"][0]["reason"]
    assert (
        "damaged (its tflops" in told("report", file, "--out", file.with_name("page.html"), "--json").stdout
    )


def test_a_study_of_damaged_rows_alone_is_one_line(file: Path):
    pq.write_table(damaged("world", "odd", 0, 1), file)
    for command in (
        ("choose", "causal", file),
        ("claims", file),
        ("compare", file, file),
        ("report", file),
        ("advise", "-m", "causal", "-w", 1, "--records", file),
    ):
        done = told(*command, codes=(2,))
        assert (
            len(done.stderr.splitlines()) == 1
            and "row 1 is damaged (its world is 0, its record gives 1)" in done.stderr
        ), command


def test_columns_of_text_are_not_believed_either(file: Path):
    table = sound()
    place = table.column_names.index("kernel")
    pq.write_table(table.set_column(place, "kernel", pa.array(["nobody"] * table.num_rows)), file)
    methods = json.loads(told("choose", "causal", file, *QUESTION).stdout)["rankings"][0]["methods"]
    assert methods and all(method["method"] != "nobody" for method in methods)


def test_escapes_in_a_record_reach_no_terminal(file: Path):
    """The name of a GPU may hold anything; JSON stays JSON."""
    gpu = "\x1b]0;pwn\x07\x1b[31mRED\x9b2J\u202e\U000e0001[bold]\r\u2028H200"
    cells = [each.cell for each in gpu_study() if each.cell.seqlen == 4096 and each.cell.mask == "causal"]
    export([record(cell, gpu=gpu, notes=(gpu,)) for cell in cells], file.parent)
    answers = [
        ("compare", file, file),
        ("choose", "causal", file, "-s", "4K"),
        ("claims", file),
        ("claims", file, 1),
    ]
    for command in answers:
        done = told(*command)
        assert done.returncode == 0, done.stderr
        assert all(line.isprintable() for line in done.stdout.splitlines()), command
        assert command[0] == "claims" or r"\x1b]0;pwn\x07\x1b[31mRED\x9b2J\u202e" in done.stdout.replace(
            "\n", ""
        )
        data = told(*command, "--json").stdout
        assert all(line.isprintable() for line in data.splitlines()) and json.loads(data), command
    chosen = json.loads(told("choose", "causal", file, *QUESTION).stdout)
    assert chosen["rankings"][0]["devices"] == [gpu]
    told("compare", file, file, "--markdown", file.with_name("page.md"))
    assert all(line.isprintable() for line in file.with_name("page.md").read_text().split("\n"))


def test_records_of_a_gpu_without_a_known_peak_are_one_line_to_advise(file: Path):
    export(
        [record(each.cell, gpu="NVIDIA Foo 9000") for each in gpu_study() if each.cell.kernel == "fa3"],
        file.parent,
    )
    done = told("advise", "-m", "causal", "-w", 1, "--records", file, codes=(2,))
    assert (
        "'NVIDIA Foo 9000'" in done.stderr
        and "config/hardware.yaml" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )


def test_a_table_of_records_alone_is_read(tmp_path: Path):
    """All columns follow from them."""
    path = tmp_path / "records.parquet"
    pq.write_table(sound().select([RECORD_COLUMN]), path)
    rows = load_rows(path)
    assert len(rows.table) == len(sound()) and not rows.problems and not load(path).problems


@pytest.mark.skipif(not COMMITTED.is_dir(), reason="only a checkout has the records")
def test_the_columns_of_committed_tables_follow_from_their_records():
    assert verified_tables.text() == verified_tables.VERIFIED.read_text(encoding="utf-8"), (
        "`make docs` writes it"
    )


def test_rates_of_other_rows_are_compared_too(tmp_path: Path):
    """They follow from all records of a table, so that a new rule makes them stale."""
    path = tmp_path / "table.parquet"
    table = sound()
    pq.write_table(table, path)
    assert verified_tables.first_problem(path) == ""
    at = table.column_names.index("peak_percent")
    pq.write_table(table.set_column(at, "peak_percent", pa.array([12.5] * len(table))), path)
    assert verified_tables.first_problem(path).startswith("row 1 is damaged (its peak_percent is 12.5, its")


def test_every_number_of_a_table_is_compared_or_made_of_other_records():
    compared = {column.name for column in checked_columns()}
    left = {column.name for column in COLUMNS if column.type != "str"} - compared
    assert left == {
        "peak_tflops",
        "peak_percent",
        "ceiling_tflops",
        "ceiling_gb_per_s",
        "ceiling_percent",
        "single_tflops",
        "single_percent",
        "disturbed",
    }
