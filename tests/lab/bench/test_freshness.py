"""Stamps of the workflow say what the records are now, whoever measured them; the whole DAG is in
tests/workflow/test_end_to_end.py."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from longca.lab.bench.plan.shards import Shard, shards_of_one_machine
from longca.lab.bench.run import freshness
from longca.lab.bench.run.freshness import BEHIND, CHECKED, REST, due_cells, refresh, write_stamp
from longca.lab.bench.run.method_version import method_versions
from longca.lab.store.beside.made import MADE, note_made, records_digest
from longca.lab.store.cells import CellStore
from longca.lab.store.index import cell_facts
from longca.lab.studies.cell import Cell
from longca.lab.studies.study import Study, load_study
from tests.helpers.records import record

STUDY = """
title: two kernels
playoff: false
grids: [{kernel: [naive, sdpa], mask: causal, seqlen: [256, 512], heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}]
"""  # noqa: E501


class Results:
    """A study whose cells are all measured, with the stamp of its one job, tables and a page."""

    def __init__(self, folder: Path) -> None:
        path = folder / "two.yaml"
        path.write_text(STUDY)
        self.study: Study = load_study(str(path))
        self.cells = self.study.cells()
        self.folder = folder / "results/two"
        self.store = CellStore(self.folder)
        self.stamps = self.folder / "shards"
        self.shards: list[Shard] = shards_of_one_machine(self.cells)
        self.stamp = self.stamps / f"{self.shards[0].name}.done"
        for cell in self.cells:
            self.measure(cell)
        self.facts = cell_facts(self.store)[0]
        write_stamp(self.stamp, self.folder, self.cells)
        self.make("tables", "page")

    def measure(self, cell, **fields) -> None:
        plain = record(cell)
        versions = method_versions([cell], self.study)(plain.environment.nodes[0].cpu)
        self.store.write(plain.model_copy(update={"method_version": versions[cell.cell_id], **fields}))

    def make(self, *names: str) -> None:
        """Tables, a page or the paper, which hold the digest of the records."""
        digest = records_digest(self.folder)
        for name in names:
            for file in MADE[name]:
                path = self.folder / file if "." in file else self.folder / file / "rate.svg"
                if path.parent != self.folder:  # as Snakemake does
                    shutil.rmtree(path.parent, ignore_errors=True)
                path.parent.mkdir(exist_ok=True)
                path.write_text(f"{name} of {digest}")
            note_made(self.folder, name, digest)

    def behind(self) -> set[str]:
        """The outputs that will be made again: each is older than its additional input."""
        told = set[str]()
        for marker in self.stamps.glob(f"*{BEHIND}"):
            name = marker.name.removesuffix(BEHIND)
            paths = [path for each in MADE[name] if (path := self.folder / each).exists()]
            if any(path.stat().st_mtime_ns < marker.stat().st_mtime_ns for path in paths) or not paths:
                told.add(name)
        return told

    def state(self) -> tuple[bool, int, bytes]:
        """Is the job's stamp there, when was it written, and the file that changes what tables are made
        of."""
        rest = self.stamps / REST
        return (
            self.stamp.exists(),
            self.stamp.stat().st_mtime_ns if self.stamp.exists() else 0,
            rest.read_bytes() if rest.exists() else b"",
        )

    def refresh(self, **options) -> tuple[bool, int, bytes]:
        refresh(self.stamps, self.study, self.shards, "code", **options)
        return self.state()


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def test_nothing_is_touched_where_nothing_changed(results, monkeypatch):
    before = results.state()
    assert results.refresh() == before and (results.stamps / CHECKED).exists()
    monkeypatch.setattr(freshness, "due_cells", None)  # what was found once is not looked for again
    assert results.refresh() == before == (True, before[1], b"")


def test_other_records_of_the_same_method_renew_the_stamp(results):
    before = results.refresh()
    results.measure(results.cells[0], run_id="by hand")
    after = results.refresh()
    assert after[0] and after[1] > before[1] and after[2] == b""


@pytest.mark.parametrize("way", ["removed", "damaged", "method", "without a job"])
def test_a_cell_to_measure_removes_the_stamp_and_has_tables_made_again(results, way):
    results.refresh()
    path = results.store.path(results.cells[0].cell_id)
    if way == "removed":
        path.unlink()
    elif way == "damaged":
        path.write_bytes(path.read_bytes().replace(b'"warmup":', b'"warmup":1'))
    elif way == "method":
        results.measure(results.cells[0], method_version="other")
    else:
        results.stamp.unlink()
    there, _, rest = results.refresh()
    assert not there and rest
    assert results.refresh()[2] != rest, "until the job is done, tables are older"
    results.measure(results.cells[0])
    write_stamp(results.stamp, results.folder, results.cells)
    rest = results.refresh()
    assert rest[0] and results.refresh() == rest


def test_a_package_that_came_or_went_is_noticed(results, monkeypatch, tmp_path):
    results.refresh()
    package = tmp_path / "site/torch-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(
        "longca.lab.bench.run.method_version._module_version",
        lambda module: "0" if module == "torch" else None,
    )
    assert not results.refresh()[0]


def test_records_that_the_study_does_not_ask_for_change_the_tables(results):
    results.refresh()
    other = Cell.model_validate(results.cells[0].model_dump() | {"kernel": "flex"})
    results.measure(other)
    there, _, rest = results.refresh()
    assert there and rest and results.refresh()[2] == rest
    results.store.path(other.cell_id).unlink()
    assert results.refresh()[2] != rest


def test_a_device_that_is_not_known_may_be_any_that_has_measured(results):
    facts = results.facts
    study = results.study
    cells = results.cells
    assert due_cells(cells, study, facts) == set()
    assert due_cells(cells, study, facts, "another CPU") == {cell.cell_id for cell in cells}


def test_in_an_image_its_digest_stands_for_the_packages(results):
    facts = results.facts
    study = results.study
    cells = results.cells
    inside = {name: each._replace(container="sha256:a") for name, each in facts.items()}
    assert due_cells(cells, study, inside, container="sha256:a") == set()
    assert (
        due_cells(cells, study, inside, container="sha256:b")
        == due_cells(cells, study, facts, container="sha256:a")
        == set(facts)
    )


FUTURE_NS = 4 * 10**18  # in 2096


def _set_times(results: Results, time_ns: int) -> None:
    for names in MADE.values():
        for path in filter(Path.exists, (results.folder / name for name in names)):
            os.utime(path, ns=(time_ns, time_ns))


@pytest.mark.parametrize("by", ["a clock that was ahead", "touched files"])
def test_no_time_of_a_file_makes_it_one_of_the_records_of_now(results, by):
    results.make("paper")
    results.refresh()
    assert results.behind() == set()
    results.measure(results.cells[0], run_id="by hand")
    _set_times(results, FUTURE_NS if by == "a clock that was ahead" else results.state()[1] + 10**9)
    results.refresh()
    assert results.behind() == {"tables", "page", "paper"}
    markers = {path: path.read_bytes() for path in results.stamps.glob(f"*{BEHIND}")}
    results.refresh()
    assert {path: path.read_bytes() for path in markers} == markers, "it is told once"
    results.make("tables", "page", "paper")
    results.refresh()
    assert results.behind() == set()


def _restore(results: Results) -> None:
    page = results.folder / "report.html"
    backup = page.read_bytes()
    results.measure(results.cells[0], run_id="by hand")
    results.make("tables", "page")
    page.write_bytes(backup)


FOREIGN: dict[str, tuple[Callable[[Results], object], set[str]]] = {
    "a page of a backup": (_restore, {"page"}),
    "an edited figure": (
        lambda results: (results.folder / "figures/rate.svg").write_text("<svg/>"),
        {"page"},
    ),
    "an edited table": (lambda results: (results.folder / "records.csv").write_text("a,b"), {"tables"}),
    "a lost table": (lambda results: (results.folder / "records.json").unlink(), {"tables"}),
    "a page without its tables": (
        lambda results: [(results.folder / name).unlink() for name in MADE["tables"]],
        {"tables"},
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_the_workflow_has_not_made_of_these_records_is_made_again(results, what):
    results.refresh()
    change, wanted = FOREIGN[what]
    change(results)
    results.refresh()
    assert results.behind() == wanted


def test_a_copy_of_a_results_folder_is_as_new_as_its_records(results):
    folder = results.folder
    results.folder = folder.with_name("copy")
    shutil.copytree(folder, results.folder, copy_function=shutil.copyfile)
    results.stamps = results.folder / "shards"
    results.store = CellStore(results.folder)
    results.refresh()
    assert results.behind() == set()
    results.measure(results.cells[0], run_id="by hand")
    results.refresh()
    assert results.behind() == {"tables", "page"}
