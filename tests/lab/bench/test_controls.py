"""Each device that measures measures its own controls, once."""

import io
from collections.abc import Callable

import pytest

from longca.lab.bench.measure.result import Result
from longca.lab.bench.run import runner
from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import run_cells
from longca.lab.bench.workers.pool import Device
from longca.lab.studies.config import Config
from longca.lab.studies.grid import Grid
from longca.lab.studies.outcome import Failed, Unsupported
from longca.lab.studies.study import Study
from tests.helpers.bench.cells import small_cell
from tests.helpers.bench.fake_pool import FakePool
from tests.helpers.bench.misbehaving import MEASURE


@pytest.fixture
def run_on(tmp_path, monkeypatch, plugins) -> Callable[..., list[str]]:
    """run_on(uuid, kernels) → the kernels that are measured on that device, of a study with two controls."""
    cells = {name: small_cell(name, "full", seqlen=8) for name in ("matmul", "device_copy", "naive", "sdpa")}
    study = Study(
        name="tiny",
        measure=MEASURE,
        grids=(
            Grid(
                kernel=tuple(cells),
                mask="full",
                seqlen=8,
                heads="4:2",
                head_dim=16,
                dtype="fp32",
                direction="fwd",
            ),
        ),
    )
    assert {cell.cell_id for cell in study.cells()} == {cell.cell_id for cell in cells.values()}
    version = "1"
    monkeypatch.setattr(runner, "Pool", FakePool)
    monkeypatch.setattr(
        runner.MethodVersions,
        "of",
        lambda self, cells: lambda device: dict.fromkeys((x.cell_id for x in cells), version),
    )
    FakePool.outcome = staticmethod(lambda cell: Result(outcome=Unsupported(reason="fake")))

    def start(uuid: str, *kernels: str, method: str = "1", **options: object) -> list[str]:
        nonlocal version
        version = method
        monkeypatch.setattr(FakePool, "device", Device(type="cuda", name="fake", num_devices=1, uuid=uuid))
        summary = run_cells(
            study,
            [cells[name] for name in kernels],
            Config(results=tmp_path, device="cpu"),
            progress=PlainProgress(io.StringIO()),
            **options,
        )
        assert summary.num_measured + summary.num_kept == len(kernels), "controls beside are in no count"
        return sorted(cell.kernel for cell in FakePool.measured)

    return start


def test_each_device_that_measures_measures_its_own_controls(run_on, store):
    assert run_on("a", "naive") == ["device_copy", "matmul", "naive"]
    assert run_on("a", "sdpa") == ["sdpa"], "they are known for it"
    assert run_on("b", "sdpa", "naive") == [], "nothing to measure, no controls"
    assert run_on("b", "sdpa", force=True) == ["device_copy", "matmul", "sdpa"]
    assert run_on("b", "naive", method="2") == ["device_copy", "matmul", "naive"], "and of another method"
    kernels = [record.cell.kernel for record in store.read_all()[0]]
    assert len(kernels) == 2 + 2 * 2 and set(kernels[2:]) == {"device_copy", "matmul"}


def test_controls_that_are_asked_for_are_cells_and_known_for_their_device(run_on, store):
    assert run_on("a", "matmul") == ["matmul"], "of controls alone no others follow"
    assert run_on("a", "naive", "matmul") == ["device_copy", "naive"]
    assert run_on("b", "naive", "matmul", "sdpa") == ["device_copy", "matmul", "sdpa"], (
        "what is kept was another device's"
    )
    records = store.read_all()[0]
    assert sorted(record.cell.kernel for record in records) == ["device_copy"] * 2 + ["matmul"] * 2 + [
        "naive",
        "sdpa",
    ]


def test_a_control_that_fails_beside_is_told_and_fails_no_run(run_on, store):
    FakePool.outcome = staticmethod(
        lambda cell: Result(
            outcome=Failed(type="E", message="") if cell.kernel == "matmul" else Unsupported(reason="fake")
        )
    )
    assert run_on("a", "naive") == ["device_copy", "matmul", "naive"] and run_on("a", "sdpa") == ["sdpa"]
    assert run_on("a", "naive", force=True, retry={"error"}) == ["matmul", "naive"]
