"""A run that measures some of its cells a second time."""

from pathlib import Path

import pytest

from longca.lab.bench.run.method_version import MethodVersions
from longca.lab.bench.run.repeats import RepeatRun
from longca.lab.bench.run.runner import run_cells
from longca.lab.store.beside.repeats import RepeatStore
from longca.lab.store.cells import CellStore
from longca.lab.store.export import export
from longca.lab.store.index import cell_facts
from longca.lab.store.load import load, load_columns
from longca.lab.studies.config import Config
from longca.lab.studies.grid import Measure
from longca.lab.studies.playoff.repeats import RepeatRules
from longca.lab.studies.record import Node, Record
from longca.lab.studies.study import Study

pytestmark = pytest.mark.long

STUDY = Study(
    name="twice",
    repeats={"least": 3, "most": 3},
    playoff=False,
    measure=Measure(warmup=1, repeats=3, max_seconds=0.2),
    grids=(
        {
            "kernel": ["naive", "sdpa"],
            "mask": ["full", "causal"],
            "seqlen": 64,
            "heads": "2:1",
            "head_dim": 32,
            "direction": "fwd",
        },
        {"kernel": "control", "mask": "full", "seqlen": 64, "heads": "2:1", "direction": "fwd"},
    ),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeats")
    config = Config(results=folder, device="cpu", progress="plain", disturbed="keep")
    first = run_cells(STUDY, STUDY.cells(), config, repeats=True)
    assert first.repeats is not None
    assert (first.repeats.num_measured, first.repeats.num_failed, len(first.repeats.differences)) == (3, 0, 3)
    assert str(first.repeats).startswith("3 cells measured twice: medians differ by ")
    again = run_cells(STUDY, STUDY.cells(), config, repeats=True)
    assert again.repeats is not None
    assert (again.repeats.num_measured, again.repeats.num_kept) == (0, 3)
    assert again.repeats.differences == first.repeats.differences
    return folder / "twice"


def test_repeats_stand_beside_the_cells_and_count_for_none(results: Path) -> None:
    loaded = load(results)
    assert len(loaded.records) == 5
    assert len(loaded.repeats) == 3
    assert all(record.repeat and record.cell.kernel != "control" for record in loaded.repeats)
    assert {record.cell_id for record in loaded.repeats} < {record.cell_id for record in loaded.records}
    assert len(load_columns([results], ["cell_id"])[0]) == 5
    table, _ = load_columns([results], ["cell_id", "repeat"])
    assert (len(table), int(table.repeat.sum())) == (8, 3)


def test_exported_records_keep_them(results: Path, tmp_path: Path) -> None:
    export(load(results).all_records, tmp_path)
    for name in ("records.parquet", "records.json"):
        loaded = load(tmp_path / name)
        assert (len(loaded.records), len(loaded.repeats)) == (5, 3), name


def test_damaged_repeat_is_named_and_made_again(results: Path) -> None:
    [path, *_] = sorted((results / "repeats").glob("*.jsonl"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert [problem.path for problem in load(results).problems] == [path]
    config = Config(results=results.parent, device="cpu", progress="plain", disturbed="keep")
    summary = run_cells(STUDY, STUDY.cells(), config, repeats=True)
    assert summary.repeats is not None
    assert (summary.repeats.num_measured, summary.repeats.num_kept) == (1, 2)
    assert not load(results).problems


class Elsewhere:
    """A pool on another device of the same model."""

    restarted = 0

    def __init__(self, device: object) -> None:
        self.device = device

    def restart(self) -> None:
        self.restarted += 1


class Silent:
    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def test_shard_repeats_cells_that_another_device_measured(results: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    records = {
        record.cell.title: record for record in load(results).records if record.cell.kernel != "control"
    }
    for number, record in enumerate(records.values()):  # half of them by another device of that model
        environment = record.environment
        assert environment is not None
        node = Node.model_validate(environment.nodes[0].model_dump() | {"hostname": f"host{number % 2}"})
        store.write(
            Record.model_validate(
                record.model_copy(update={"environment": environment.model_copy(update={"nodes": (node,)})})
            )
        )
    facts, _ = cell_facts(store)
    own = [record.cell for number, record in enumerate(records.values()) if not number % 2]
    by_id = {record.cell_id: record for record in records.values()}
    device = type("Device", (), {"name": next(iter(facts.values())).device, "type": "cpu"})()
    made: list[Record] = []

    def measure(cell: object, **more: object) -> Record:
        record = by_id[cell.cell_id].model_copy(update=more)  # type: ignore[attr-defined]
        environment = record.environment
        node = Node.model_validate(environment.nodes[0].model_dump() | {"hostname": "host0"})  # type: ignore[union-attr]
        made.append(
            record.model_copy(update={"environment": environment.model_copy(update={"nodes": (node,)})})
        )  # type: ignore[union-attr]
        return made[-1]

    run = RepeatRun(
        STUDY, RepeatRules(least=2, most=2), own, store, Elsewhere(device), measure, MethodVersions(STUDY)
    )  # type: ignore[arg-type]
    stop = type("Stop", (), {"soon": lambda self: False})()
    run.measure(facts, Silent(), stop)  # type: ignore[arg-type]
    assert run.counts.num_measured == 3  # two of its own, one of the other's
    assert sum(record.cell not in own for record in made) == 1
    again = RepeatRun(
        STUDY, RepeatRules(least=2, most=2), own, store, Elsewhere(device), measure, MethodVersions(STUDY)
    )  # type: ignore[arg-type]
    again.measure(facts, Silent(), stop)  # type: ignore[arg-type]
    assert (again.counts.num_measured, again.counts.num_kept) == (0, 3)
    assert len(RepeatStore(tmp_path).read_all()[0]) == 3
