from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longca.lab.bench.measure import environment
from longca.lab.bench.measure.environment import CONTAINER, device_name, node, software
from longca.lab.bench.measure.nvml import Gpu
from longca.lab.studies.checkout import source
from longca.lab.studies.record import Environment

CPU = torch.device("cpu")


def test_a_machine_without_gpu_is_described() -> None:
    here = node(CPU)
    assert here.hostname and here.os and here.cpu and here.num_cores >= 1 and here.memory_bytes > 1 << 20
    assert here.gpu == {}
    assert device_name(CPU) == here.cpu


def test_versions_of_what_matters() -> None:
    packages = software()
    assert {"torch", "numpy"} <= packages.packages.keys()
    assert packages.python.count(".") == 2
    assert (packages.cuda is None) == (torch.version.cuda is None)


def test_only_listed_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOMEBODYS_SECRET", "x")
    monkeypatch.setenv(CONTAINER, "sha256:abc")
    packages = software()
    assert packages.env["OMP_NUM_THREADS"] == "3" and "SOMEBODYS_SECRET" not in packages.env
    assert packages.container == "sha256:abc"


def test_an_image_that_was_entered_by_hand_is_named_by_its_stamp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CONTAINER, raising=False)
    monkeypatch.setattr(environment, "IMAGES", tmp_path / "images")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/cpu.sif")
    assert software().container == "not obtained by longca: /images/cpu.sif"
    (tmp_path / "images").mkdir()
    (tmp_path / "images/cpu.sif.sha256").write_text(f"{'ab' * 32}  /images/cpu.sif\n")
    assert software().container == f"sha256:{'ab' * 32}"


def test_what_nvml_refuses_is_left_out() -> None:
    class NVMLError(Exception):
        pass

    def refuse(*args: object) -> None:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetPersistenceMode=lambda handle: 1,
        nvmlDeviceGetEccMode=lambda handle: (1, 1),
        nvmlDeviceGetClockInfo=refuse,
        nvmlDeviceGetMigMode=refuse,
    )
    assert environment._managed(Gpu(nvml, None)) == {
        "driver": "580.1",
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 1980,
        "persistence": True,
        "ecc": True,
    }


def test_a_record_takes_it() -> None:
    whole = Environment(nodes=(node(CPU),), software=software(), source=source())
    assert Environment.model_validate_json(whole.model_dump_json()) == whole
