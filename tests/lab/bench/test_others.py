"""The activity of others on a device while a cell is measured is kept apart from the run's own work, and such
cells are measured again."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from longca.core.hardware import Hardware
from longca.lab.bench.measure import others as others_module
from longca.lab.bench.measure.nvml import Gpu
from longca.lab.bench.measure.others import others, watch
from longca.lab.bench.measure.result import Result
from longca.lab.bench.run import runner
from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import run_cells
from longca.lab.bench.workers.pool import Device
from longca.lab.store.cells import CellStore
from longca.lab.store.view import View
from longca.lab.studies.config import Config
from longca.lab.studies.record import Others
from tests.helpers.bench.misbehaving import kernel_cell
from tests.helpers.records import record
from tests.lab.bench.test_runner import STUDY

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
BURN = "import sys, time\nprint(flush=True)\nwhile True: pass"
CELL = kernel_cell("naive")


@contextmanager
def burning() -> Iterator[int]:
    """Another process that keeps a core busy, a child of this one."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_busy_process_of_the_run_is_not_another():
    with burning() as pid:
        begun_s = sum(psutil.Process(pid).cpu_times()[:2])
        with watch(CPU) as uses:
            while sum(psutil.Process(pid).cpu_times()[:2]) < begun_s + 0.3:  # however busy this machine is
                time.sleep(0.05)
    child_s = uses["own_s"][str(pid)]
    assert child_s > 0.25 and {pid, os.getpid(), os.getppid()} <= set(uses["pids"])
    mine = others([uses]).cpu_cores
    uses["own_s"].pop(str(pid))
    assert others([uses]).cpu_cores > mine + 0.5 * child_s / uses["seconds"], (
        "as it would be told of a process of somebody else"
    )
    assert uses["gpu_holders"] is None and others([uses]).gpu_processes is None


def uses(
    seconds: float = 1.0,
    busy_s: float = 1.0,
    own_s: dict[str, float] | None = None,
    machine: str = "m",
    **gpu: Any,
) -> dict[str, Any]:
    return {
        "machine": machine,
        "seconds": seconds,
        "busy_s": busy_s,
        "pids": [10, 11],
        "own_s": own_s or {},
        "gpu_holders": None,
        "gpu_percents": {},
        **gpu,
    }


@pytest.mark.parametrize(
    ("of_ranks", "cores"),
    [
        ([uses(busy_s=1.5, own_s={"11": 1.25})], 0.25),
        (
            [
                uses(busy_s=1.5, own_s={"10": 0.25, "11": 0.5}),
                uses(busy_s=1.5, own_s={"10": 0.25, "12": 0.5}),
            ],
            0.25,
        ),  # 10 is their parent
        ([uses(busy_s=1.0, own_s={"11": 1.0}), uses(busy_s=3.0, own_s={"11": 1.0}, machine="other")], 2.0),
        ([uses(busy_s=0.1, own_s={"11": 0.2})], 0.0),  # the system counts in steps
        ([uses(seconds=0.05)], None),
    ],
)
def test_cores_that_others_keep_busy(of_ranks, cores):
    assert others(of_ranks).cpu_cores == cores


@pytest.mark.parametrize(
    ("holders", "percents", "expected", "disturbs"),
    [
        ({"11": True}, {"11": 97.0}, (0, 0.0), False),
        ({"11": True}, {}, (0, 0.0), False),
        ({"11": True, "77": True}, {"11": 97.0, "77": 40.0}, (1, 40.0), True),
        ({"11": True, "77": True}, {"11": 97.0}, (1, 0.0), False),  # an idle notebook
        ({"11": True, "77": True}, {}, (1, None), True),  # the driver does not say what it does
        ({"5011": False}, {"5011": 97.0}, (0, 0.0), False),  # in a container: this rank by the host's number
        ({"5011": False, "5077": False}, {"5011": 97.0, "5077": 3.0}, (1, None), True),
    ],
)
def test_processes_that_use_the_gpu(holders, percents, expected, disturbs):
    activity = others([uses(gpu_holders=holders, gpu_percents=percents)])
    assert (activity.gpu_processes, activity.gpu_percent) == expected
    assert bool(activity.disturbance(on_gpu=True, num_cores=64)) == disturbs


def test_nvml_is_asked_before_and_after(monkeypatch):
    answers = iter([[11], [11, 77]])
    asked: list[int] = []

    def utilization(handle: object, since_us: int) -> list[SimpleNamespace]:
        asked.append(since_us)
        return [SimpleNamespace(pid=77, smUtil=share) for share in (3, 55, 20)]

    nvml = SimpleNamespace(
        NVMLError=KeyError,
        nvmlDeviceGetProcessUtilization=utilization,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=pid) for pid in next(answers)
        ],
    )

    @contextmanager
    def open_gpu(device: torch.device) -> Iterator[Gpu]:
        yield Gpu(nvml, None)

    monkeypatch.setattr(others_module, "open_gpu", open_gpu)
    with watch(GPU) as watched:
        assert not asked
    assert watched["gpu_holders"].keys() == {"11", "77"} and watched["gpu_percents"] == {"77": 55.0}
    assert 1.5e6 < time.time() * 1e6 - asked[0] < 10e6, "NVML counts microseconds"
    nvml.nvmlDeviceGetComputeRunningProcesses = nvml.nvmlDeviceGetProcessUtilization = lambda *_: (
        _ for _ in ()
    ).throw(KeyError)
    with watch(GPU) as watched:
        pass
    assert others([watched]).gpu_processes == 0


@pytest.mark.parametrize(
    ("cores", "num_cores", "disturbs"),
    [(0.4, 2, False), (0.6, 2, True), (6.0, 64, False), (8.0, 64, True), (None, 2, False)],
)
def test_what_disturbs_a_cpu(cores, num_cores, disturbs):
    text = Others(cpu_cores=cores).disturbance(on_gpu=False, num_cores=num_cores)
    assert bool(text) == disturbs and (not text or f"of {num_cores} cores busy" in text)


@pytest.fixture
def runs(tmp_path, monkeypatch) -> "Runs":
    return Runs(tmp_path, monkeypatch)


class Runs:
    """Runs of one cell, whose worker gives the times and the load of others that are set here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times_ms = [1.0, 1.0, 1.0, 1.0]
        self.others_cores = 0.0
        self.said = io.StringIO()
        self._folder = folder
        monkeypatch.setattr(runner, "Pool", self._pool)
        monkeypatch.setattr(
            runner.MethodVersions,
            "of",
            lambda self, cells: lambda _: dict.fromkeys((cell.cell_id for cell in cells), "1"),
        )

    def _pool(self, *_: object, **__: object) -> AbstractContextManager[Any]:
        return nullcontext(
            SimpleNamespace(device=Device(type="cpu", name="fake", num_devices=1), measure=self._measure)
        )

    def _measure(self, *_: object) -> Result:
        measured = record(CELL)
        facts = measured.model_dump(include=set(Result.model_fields) - {"others"})
        facts["samples"]["time_ms"] = [self.times_ms]
        return Result(
            **facts,
            nodes=measured.environment.nodes,
            software=measured.environment.software,
            others=Others(cpu_cores=self.others_cores),
        )

    def run(self, retry: set[str] = frozenset(), disturbed: str = "again") -> int:
        """The number of cells that are measured."""
        return run_cells(
            STUDY,
            [CELL],
            Config(results=self._folder, device="cpu", disturbed=disturbed),
            retry=retry,
            progress=PlainProgress(self.said),
        ).num_measured

    @property
    def stored(self) -> View:
        return View(CellStore(self._folder / STUDY.name).read(CELL.cell_id), Hardware())


def test_a_disturbed_cell_is_marked_and_measured_again_once(runs):
    runs.others_cores = 5.0
    assert (
        runs.run() == 1
        and runs.stored.disturbance.startswith("others kept 5.0 of ")
        and runs.stored.record.others.again == 0
    )
    assert runs.run(disturbed="keep") == 0
    assert "Measured again" not in runs.said.getvalue()
    assert runs.run() == 1 and runs.stored.disturbance and runs.stored.record.others.again == 1
    assert "Measured again: 1 cell during which others used the device" in runs.said.getvalue()
    assert runs.run() == 0, "a busy machine must not keep a study from its end"
    runs.others_cores = 0.1
    assert (
        runs.run(retry={"disturbed"}) == 1
        and runs.stored.disturbance == ""
        and runs.stored.record.others.again == 2
    )
    assert runs.run(retry={"disturbed"}) == runs.run() == 0


def test_a_drifting_cell_is_measured_again_once_and_keeps_its_number(runs):
    steady = [1.0] * 12
    rising = [1.0 + 0.02 * number for number in range(12)]
    runs.times_ms = rising
    assert runs.run() == 1 and runs.stored.drift == "rising" and runs.stored.samples.again == 0
    assert runs.run(disturbed="keep") == 0
    assert runs.run() == 1 and runs.stored.is_drifting and runs.stored.samples.again == 1
    assert "Measured again: 1 cell whose samples drifted" in runs.said.getvalue()
    assert runs.run() == 0 and runs.stored.median_ms == pytest.approx(1.11)
    runs.times_ms = steady
    assert (
        runs.run(retry={"drifting"}) == 1
        and runs.stored.drift == "none"
        and runs.run(retry={"drifting"}) == runs.run() == 0
    )


def test_drift_and_others_in_turn_do_not_go_on_for_ever(runs):
    runs.others_cores = 5.0
    assert runs.run() == 1
    runs.others_cores, runs.times_ms = 0.1, [1.0 + 0.02 * number for number in range(12)]
    assert runs.run() == 1 and runs.stored.is_drifting and runs.stored.num_unsettled == 2
    assert runs.run() == 0


def test_a_noisy_cell_is_measured_again_where_that_is_asked_for(runs):
    """The middle half of its samples spreads over more than a tenth of their median."""
    runs.times_ms = [1.0, 1.0, 1.2, 1.2]
    assert runs.run() == 1 and runs.stored.noise > 0.1 and runs.run() == 0
    runs.times_ms = [1.0, 1.0, 1.05, 1.05]
    assert runs.run(retry={"noisy"}) == 1 and runs.stored.noise < 0.1
    assert runs.run(retry={"noisy"}) == 0


def test_records_from_before_are_not_told_to_be_disturbed():
    old = record(CELL)
    assert old.others is None and View(old, Hardware()).disturbance is None
