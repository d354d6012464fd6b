"""The index holds the content of cells' records, and nothing that has changed since."""

import json
import os

import pytest

from longca.lab.store import index
from longca.lab.store.cells import CellStore
from longca.lab.store.index import CellFacts, cell_facts
from longca.lab.studies.outcome import Failed
from tests.helpers.records import quick_study


@pytest.fixture
def store(tmp_path, monkeypatch) -> CellStore:
    """Some cells, of which an index is worth its file."""
    monkeypatch.setattr(index, "FEWEST", 3)
    made = CellStore(tmp_path)
    for record in quick_study()[::7]:
        made.write(record)
    return made


@pytest.fixture
def reads(store, monkeypatch) -> list[str]:
    """Ids of the cells whose files are read."""
    texts: list[str] = []
    read = store.read

    def noted(cell_id: str) -> object:
        texts.append(cell_id)
        return read(cell_id)

    monkeypatch.setattr(store, "read", noted)
    return texts


def test_facts_are_those_of_the_records_and_are_read_once(store, reads):
    expected = {record.cell_id: CellFacts.of(record) for record in store.read_all()[0]}
    assert cell_facts(store) == (expected, []) and sorted(reads) == sorted(expected)
    reads.clear()
    assert cell_facts(store) == (expected, []) and reads == []
    assert {facts.status for facts in expected.values()} > {"ok"} and any(
        facts.time_ms for facts in expected.values()
    )


def test_a_changed_a_new_and_a_removed_cell(store, reads):
    cell_facts(store)
    reads.clear()
    records = store.read_all()[0]
    changed = records[0].model_copy(
        update={"outcome": Failed(type="E", message="m", log="a\nb\nc"), "samples": None, "run_id": "again"}
    )
    path = store.path(records[1].cell_id)
    stamp = path.stat()
    store.write(changed)
    new = next(record for record in quick_study() if record.cell_id not in {each.cell_id for each in records})
    store.write(new)
    path.unlink()
    facts, problems = cell_facts(store)
    assert sorted(reads) == sorted([changed.cell_id, new.cell_id]) and problems == []
    assert facts[changed.cell_id] == CellFacts.of(changed) and facts[changed.cell_id].log_start == "a\nb"
    assert new.cell_id in facts and records[1].cell_id not in facts
    store.write(records[1])  # as it was, at the same time: another file all the same
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    reads.clear()
    assert records[1].cell_id in cell_facts(store)[0] and reads == [records[1].cell_id]


def test_a_damaged_cell_is_told_each_time(store):
    path = store.path(store.read_all()[0][0].cell_id)
    path.write_text("{")
    facts, [problem] = cell_facts(store)
    assert problem.path == path and path.stem not in facts and cell_facts(store) == (facts, [problem])
    stray = store.cells / "zz" / f"{next(iter(facts))}.json"
    stray.parent.mkdir()
    stray.write_bytes(store.path(stray.stem).read_bytes())
    facts, problems = cell_facts(store)
    assert {problem.path for problem in problems} == {path, stray} and stray.stem in facts


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '["x",[],[],[],[],[[],[],[],[],[],[],[],[],[],[]]]',
        "null",
        '["code",["a"],[1],[1],[1],[[]]]',
    ],
)
def test_an_index_that_cannot_be_used_is_made_anew(store, content):
    expected = cell_facts(store)
    path = store.cells / index.NAME
    good = path.read_bytes()
    path.write_text(content)
    assert cell_facts(store) == expected and path.read_bytes() == good


def test_other_code_reads_all_again(store, reads, monkeypatch):
    cell_facts(store)
    monkeypatch.setattr(index, "files_digest", lambda _: "other")
    reads.clear()
    cell_facts(store)
    assert len(reads) == len(store.read_all()[0])


def test_an_index_of_wrong_columns_is_not_believed(store):
    expected = cell_facts(store)
    path = store.cells / index.NAME
    content = json.loads(path.read_text())
    content[5][0].pop()
    path.write_text(json.dumps(content))
    assert cell_facts(store) == expected


def test_a_folder_that_cannot_be_written_is_read_each_time(store, reads, monkeypatch):
    monkeypatch.setattr(index, "write_atomically", lambda *_: (_ for _ in ()).throw(PermissionError()))
    assert cell_facts(store) == cell_facts(store) and len(reads) == 2 * len(set(reads))
    assert not (store.cells / index.NAME).exists()


def test_few_cells_have_no_index(tmp_path):
    store = CellStore(tmp_path)
    store.write(quick_study()[0])
    assert len(cell_facts(store)[0]) == 1 and not (store.cells / index.NAME).exists()
    assert cell_facts(CellStore(tmp_path / "none")) == ({}, [])


def test_the_index_is_no_leftover_and_no_cell(store):
    cell_facts(store)
    assert store.read_all()[1] == []
    with store.lock():
        assert (store.cells / index.NAME).exists()
