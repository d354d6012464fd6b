"""Rows that are kept are those of the cells as they are now, whatever happens to either."""

import errno

import pytest

from longca.lab.store import files
from longca.lab.store.beside.made import is_made_of, records_digest
from longca.lab.store.cells import CellStore
from longca.lab.store.columns import COLUMNS
from longca.lab.store.load import load
from longca.lab.store.rows import kept
from longca.lab.store.rows.load import load_rows
from longca.lab.store.table import columns, in_order
from longca.lab.studies.outcome import Failed
from tests.helpers.records import quick_study


@pytest.fixture
def store(tmp_path, monkeypatch) -> CellStore:
    """Some cells, whose rows are kept, and which count as written long ago."""
    monkeypatch.setattr(kept, "FEWEST", 3)
    monkeypatch.setattr(kept, "SETTLED_NS", -(10**12))
    made = CellStore(tmp_path)
    for record in quick_study()[::5]:
        made.write(record)
    return made


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Ids of the cells whose files are read."""
    found: list[str] = []
    read = CellStore.read

    def noted(self: CellStore, cell_id: str) -> object:
        found.append(cell_id)
        return read(self, cell_id)

    monkeypatch.setattr(CellStore, "read", noted)
    return found


def check_rows(store: CellStore) -> list[str]:
    """The rows are those of the records as `load` reads them; the ids of the files with problems."""
    loaded = load(store.folder)
    rows = load_rows(store.folder)
    ordered = in_order(loaded.all_records)
    assert list(rows.table.records()) == ordered
    assert columns(rows.table) == columns(ordered)
    assert sorted(map(str, rows.problems)) == sorted(map(str, loaded.problems))
    return [problem.path.stem for problem in rows.problems]


def test_cells_are_read_once(store, reads):
    check_rows(store)
    assert len(reads) == len(quick_study()[::5])
    reads.clear()
    check_rows(store)
    assert reads == []


@pytest.mark.parametrize("command", ["report", "export"])
def test_commands_on_a_fresh_copy_read_each_cell_once(store, reads, longca, tiny, command):
    """Neither an index nor rows are kept there. The note of what was made has the digest of these records."""
    results = store.folder / "results"
    (results / "tiny").mkdir(parents=True)
    store.cells.rename(results / "tiny" / "cells")
    done = longca(command, tiny, "--results", results, here=True)
    assert done.returncode == 0, done.stderr
    assert sorted(reads) == sorted(record.cell_id for record in quick_study()[::5])
    name = {"report": "page", "export": "tables"}[command]
    assert is_made_of(results / "tiny", name, records_digest(results / "tiny"))


def test_changed_new_and_removed_cells(store, reads):
    check_rows(store)
    reads.clear()
    first, second, *_ = load(store.folder).records
    failed = {"outcome": Failed(type="E", message="m", log="a\nb"), "samples": None, "run_id": "again"}
    store.write(first.model_copy(update=failed))
    store.path(second.cell_id).unlink()
    new = next(each for each in quick_study() if not store.path(each.cell_id).exists() and each != second)
    store.write(new)
    check_rows(store)
    assert sorted(reads) == sorted([first.cell_id, new.cell_id])
    reads.clear()
    check_rows(store)
    assert reads == []


def test_a_damaged_cell_is_named_each_time_and_its_row_is_gone(store):
    check_rows(store)
    path = store.path(load(store.folder).records[0].cell_id)
    stray = store.cells / "zz" / path.name
    stray.parent.mkdir()
    stray.write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"seed":', b'"seed": 1'))
    assert check_rows(store) == check_rows(store) == [path.stem, path.stem]


def test_a_cell_that_was_just_written_is_read_again(store, reads, monkeypatch):
    monkeypatch.setattr(kept, "SETTLED_NS", 10**12)
    check_rows(store)
    reads.clear()
    check_rows(store)
    assert len(reads) == len(quick_study()[::5])


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "head", "other code", "other secrets"])
def test_a_file_that_cannot_be_believed_is_made_again(store, reads, damage, monkeypatch):
    check_rows(store)
    reads.clear()
    path = store.cells / kept.NAME
    content = path.read_bytes()
    if damage == "other code":
        monkeypatch.setattr(kept, "_code", lambda: "another")
    elif damage == "other secrets":
        monkeypatch.setenv("MY_PASSWORD", "a-long-secret")
    else:
        changed = bytearray(content)
        changed[-100 if damage == "bit" else 70] ^= 1
        path.write_bytes({"empty": b"", "cut": content[:-1]}.get(damage, bytes(changed)))
    check_rows(store)
    assert len(reads) == len(quick_study()[::5])
    reads.clear()
    check_rows(store)
    assert reads == []


def test_a_secret_that_was_not_one_before_is_hidden(store, monkeypatch):
    log = Failed(type="E", message="m", log="said a-long-secret")
    failed = quick_study()[0].model_copy(update={"outcome": log, "samples": None})
    store.write(failed)
    assert b"a-long-secret" in b"".join(load_rows(store.folder).table.lines())
    monkeypatch.setenv("MY_PASSWORD", "a-long-secret")
    assert b"a-long-secret" not in b"".join(load_rows(store.folder).table.lines())
    check_rows(store)
    assert b"a-long-secret" not in (store.cells / kept.NAME).read_bytes()


def test_a_full_disk_costs_the_kept_rows_alone(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    check_rows(store)
    assert not [path for path in store.cells.iterdir() if path.is_file()]


def test_controls_of_other_devices_are_rows_too(store):
    own = load(store.folder).records
    control = next(record for record in own if record.work is not None)
    store.write_control(control, "GPU-1")
    store.write_control(control.model_copy(update={"run_id": "another"}), "GPU-2")
    check_rows(store)
    assert len(load_rows(store.folder).table) == len(own) + 1 == load_rows(store.folder).num_own


def test_every_column_is_kept(store):
    check_rows(store)
    table = load_rows(store.folder).table
    values = columns(table)
    assert list(values) == [column.name for column in COLUMNS] and len(table) == len(values["cell_id"])
    taken = table.take([2, 0])
    assert [record.cell_id for record in taken.records()] == [values["cell_id"][2], values["cell_id"][0]]
