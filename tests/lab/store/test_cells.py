"""The store keeps every finished record, whatever happens to the process that writes."""

import errno
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.decode import encode
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Incorrect, Ok
from longca.lab.studies.record import SCHEMA_VERSION, Accuracy, Record, Samples
from tests.helpers.store.started import start

WRITE_FOREVER = """
import sys
from longca.lab.studies.record import Record
from longca.lab.store.cells import CellStore
store, record = CellStore(sys.argv[1]), Record.model_validate_json(sys.stdin.read())
number = 0
while True:
    number += 1
    store.write(record.model_copy(update={"run_id": f"{number};" * 2000}))
    if number == 1:
        print("writing", flush=True)
"""
SCHEMA = f'"schema_version":{SCHEMA_VERSION}'


@pytest.fixture
def make_record() -> Callable[..., Record]:
    def make(seqlen: int = 128, time_ms: float = 1.0, relative: float = 1e-3) -> Record:
        cell = Cell(
            kind="kernel",
            kernel="naive",
            mask="causal",
            seqlen=seqlen,
            num_q_heads=4,
            num_kv_heads=2,
            head_dim=32,
            dtype="fp32",
            direction="fwd",
        )
        is_right = relative <= 1.0
        return Record(
            cell_id=cell.cell_id,
            cell=cell,
            study="tiny",
            run_id="r",
            method_version="m",
            outcome=Ok() if is_right else Incorrect(reason="out is off"),
            samples=Samples(time_ms=((time_ms, time_ms),), warmup=1, timer="monotonic") if is_right else None,
            accuracy=Accuracy(
                reference="float64", scope="all", relative={"out": relative}, budget={"out": 1.0}
            ),
            started_at="2026-01-01T00:00:00+00:00",
            seconds=0.1,
        )

    return make


def test_a_record_comes_back_as_it_was(tmp_path, make_record):
    store = CellStore(tmp_path)
    record = make_record()
    path = store.write(record)
    assert path == tmp_path / "cells" / record.cell_id[:2] / f"{record.cell_id}.json"
    assert store.read(record.cell_id) == record
    assert store.read_all() == ([record], [])
    assert store.read("0" * 16) is None
    assert CellStore(tmp_path / "nowhere").read_all() == ([], [])


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_errors_that_are_not_finite_survive(tmp_path, make_record, error):
    store = CellStore(tmp_path)
    record = make_record(relative=error)
    path = store.write(record)
    assert "NaN" in path.read_text() or "Infinity" in path.read_text()
    assert json.loads(path.read_text(), parse_constant=pytest.fail)
    assert repr(store.read(record.cell_id).accuracy.relative["out"]) == repr(error)


def test_a_second_write_replaces_the_first(tmp_path, make_record):
    store = CellStore(tmp_path)
    store.write(make_record(time_ms=1.0))
    store.write(make_record(time_ms=2.0))
    records, problems = store.read_all()
    assert [record.samples.time_ms for record in records] == [((2.0, 2.0),)] and not problems
    assert len(list(tmp_path.rglob("*.json"))) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda text: "[" * 100_000, "nested too deeply"),
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "", "not valid JSON"),
        (lambda text: "\x00" * 50, "not valid JSON"),
        (lambda text: text.replace('"run_id":"r"', '"run_id":"s"'), "its checksum says otherwise"),
        (lambda text: text.replace('"checksum":"sha256:', '"checksum":"md5:'), "its checksum says otherwise"),
        (lambda text: text.replace('"run_id":"r"', '"run_id":"r","run_id":"r"'), "it has key 'run_id' twice"),
        (
            lambda text: text.replace('"run_id":"r"', '"run_id":"r","run_id" :"r"'),
            "it has key 'run_id' twice",
        ),
        (lambda text: text.replace('"out":1.0', '"out":1.0,"out":2.0'), "it has key 'out' twice"),
        (
            lambda text: text.replace(SCHEMA, '"schema_version":"1"'),
            "its schema version is '1', no whole number",
        ),
        (
            lambda text: text.replace(SCHEMA, '"schema_version":true'),
            "its schema version is True, no whole number",
        ),
        (
            lambda text: text.replace(SCHEMA, '"schema_version":1.0'),
            "its schema version is 1.0, no whole number",
        ),
        (
            lambda text: text.replace('"seconds":0.1', f'"seconds":{"9" * 5000}'),
            "it has a number of thousands of digits",
        ),
        (lambda text: text + " " * (9 << 20), "larger than 8 MiB"),
        (lambda text: "[1, 2]", "not a record"),
        (
            lambda text: text.replace(SCHEMA, '"schema_version":99'),
            "schema version 99, this longca reads 1 to 3",
        ),
        (lambda text: text.replace('"seconds":0.1', '"seconds":"long"'), "'seconds' = 'long'"),
        (lambda text: text.replace('"seqlen":128', '"seqlen":256'), "cell_id is"),
    ],
)
def test_a_damaged_file_is_named_and_harms_nothing(tmp_path, make_record, content, reason):
    store = CellStore(tmp_path)
    good = make_record(seqlen=64)
    store.write(good)
    path = store.write(make_record(seqlen=128))
    text = path.read_text()
    path.write_text(content(text))
    assert path.read_text() != text
    records, problems = store.read_all()
    assert records == [good]
    assert [problem.path for problem in problems] == [path] and reason in problems[0].reason
    assert store.read(path.stem) == problems[0] and str(path) in str(problems[0])


def test_bytes_that_are_no_text_are_a_problem(tmp_path, make_record):
    store = CellStore(tmp_path)
    path = store.write(make_record())
    path.write_bytes(b"\xff\xfe\x00")
    assert isinstance(store.read(path.stem), UnusableFile)


def test_a_file_in_another_cells_place_is_a_problem(tmp_path, make_record):
    store = CellStore(tmp_path)
    record = make_record()
    other = store.path("ab" + "0" * 14)
    other.parent.mkdir(parents=True)
    other.write_bytes(encode(record))
    records, (problem,) = store.read_all()
    assert records == [] and record.cell_id in problem.reason


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path, make_record):
    store = CellStore(tmp_path)
    record = make_record()
    store.path(record.cell_id).mkdir(parents=True)
    assert "cannot be read" in store.read(record.cell_id).reason


@pytest.mark.long
def test_kill_9_leaves_the_old_record_or_the_new_one(tmp_path, make_record):
    record = make_record()
    store = CellStore(tmp_path)
    for attempt in range(5):
        writer = start(WRITE_FOREVER, str(tmp_path), text=record.model_dump_json())
        time.sleep(0.01 * attempt)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        stored = store.read(record.cell_id)
        parts = stored.run_id.removesuffix(";").split(";")
        assert len(parts) == 2000 and len(set(parts)) == 1
        assert store.read_all()[1] == []


def test_leftovers_are_ignored_and_removed_by_the_next_run(tmp_path, make_record):
    store = CellStore(tmp_path)
    folder = store.write(make_record()).parent
    left = folder / ".0123456789abcdef.aa.tmp"
    written = folder / ".0123456789abcdef.bb.tmp"
    for path in (left, written):
        path.write_text("{")
    assert len(store.read_all()[0]) == 1 and store.read_all()[1] == []
    with written.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as its writer does
        with store.lock("kernel-naive-0"):
            assert written.exists() and not left.exists()  # another part is writing the other one
    with store.lock():
        assert not written.exists()
    assert len(store.read_all()[0]) == 1


def test_what_a_killed_writer_has_left_goes_with_the_next_write(tmp_path, make_record):
    store = CellStore(tmp_path)
    path = store.write(make_record())
    left = path.with_name(f".{path.stem}.aa.tmp")
    left.write_text("{")
    store.write(make_record())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_one_line_and_the_old_record_stays(tmp_path, make_record, monkeypatch, number):
    store = CellStore(tmp_path)
    old = make_record(time_ms=1.0)
    store.write(old)

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("longca.lab.store.files.os.fsync", full)
    with pytest.raises(UserError) as caught:
        store.write(make_record(time_ms=2.0))
    assert os.strerror(number) in str(caught.value) and "\n" not in str(caught.value)
    assert store.read_all() == ([old], []) and not list(tmp_path.rglob("*.tmp"))


def test_a_disk_that_is_really_full(tmp_path, make_record):
    """A limit on file size is the nearest thing to a full disk that needs no rights: the write itself
    fails."""
    program = """
import resource, signal, sys
from longca.core.errors import UserError
from longca.lab.studies.record import Record
from longca.lab.store.cells import CellStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    CellStore(sys.argv[1]).write(Record.model_validate_json(sys.stdin.read()))
except UserError as error:
    print(error)
"""
    store = CellStore(tmp_path)
    old = make_record(time_ms=1.0)
    store.write(old)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        input=make_record(time_ms=2.0).model_dump_json(),
        timeout=60,
    )
    assert "Cannot write" in done.stdout and done.stdout.count("\n") == 1 and not done.stderr
    assert store.read_all() == ([old], []) and not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written(tmp_path, make_record, monkeypatch):
    (tmp_path / "file").write_text("")
    store = CellStore(tmp_path / "file")
    with pytest.raises(UserError, match="Cannot write"):
        store.write(make_record())
    with pytest.raises(UserError, match=r"Cannot write .* Give another folder"), store.lock():
        pass

    def read_only(self: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(UserError, match="Read-only file system"):
        CellStore(tmp_path / "results").write(make_record())


def test_the_store_needs_no_heavy_library():
    program = (
        "import sys, longca.lab.store.cells; print([m for m in ('torch', 'pandas', 'numpy') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
