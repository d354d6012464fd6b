from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longca.bench import environment
from longca.bench.environment import CONTAINER, device_name, node, software, source
from longca.bench.nvml import Gpu
from longca.core.record import Environment

CPU = torch.device("cpu")


def test_a_machine_without_gpu_is_described() -> None:
    here = node(CPU)
    assert here.hostname and here.os and here.cpu and here.num_cores >= 1 and here.memory_bytes > 1 << 20
    assert here.gpu == {}
    assert device_name(CPU) == here.cpu


def test_versions_of_what_matters() -> None:
    found = software()
    assert {"torch", "numpy"} <= found.packages.keys()
    assert found.python.count(".") == 2
    assert (found.cuda is None) == (torch.version.cuda is None)


def test_only_listed_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOMEBODYS_SECRET", "x")
    monkeypatch.setenv(CONTAINER, "sha256:abc")
    found = software()
    assert found.env["OMP_NUM_THREADS"] == "3" and "SOMEBODYS_SECRET" not in found.env
    assert found.container == "sha256:abc"


def test_without_git_the_commit_is_what_the_copy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "longca" / "bench" / "environment.py"))
    assert source.__wrapped__().git_sha is None
    for described, sha, dirty in (("0a" * 20, "0a" * 20, False), ("0a" * 20 + "-dirty", "0a" * 20, True)):
        monkeypatch.setenv("LONGCA_COMMIT", described)
        assert (source.__wrapped__().git_sha, source.__wrapped__().git_dirty) == (sha, dirty)
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source.__wrapped__().git_sha is None and source.__wrapped__().git_dirty is None


def test_what_nvml_refuses_is_left_out() -> None:
    class NVMLError(Exception):
        pass

    def refuse(*args: object) -> None:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000, nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetPersistenceMode=lambda handle: 1, nvmlDeviceGetEccMode=lambda handle: (1, 1),
        nvmlDeviceGetClockInfo=refuse, nvmlDeviceGetMigMode=refuse)
    assert environment._managed(Gpu(nvml, None)) == {
        "driver": "580.1", "power_limit_w": 700.0, "max_sm_clock_mhz": 1980, "max_memory_clock_mhz": 1980, "persistence": True,
        "ecc": True}


def test_a_record_takes_it() -> None:
    whole = Environment(nodes=(node(CPU),), software=software(), source=source())
    assert Environment.model_validate_json(whole.model_dump_json()) == whole
