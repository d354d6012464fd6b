"""A rate that no such device can have is an outcome of its own; a rate that it can is none."""

import pytest
import torch

from longca.lab.bench.judge.plausible import plausible
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.result import Result
from longca.lab.store.hardware import GpuModel, Hardware, Sourced
from longca.lab.studies.study import Measure
from tests.lab.bench.cells import small_cell

CELL = small_cell("naive", "full", seqlen=512, dtype="bf16")
SOURCE = "https://example.org"
GPU = Hardware(
    gpus=(
        GpuModel(
            name="G",
            gpu_names=("G",),
            peak_tflops=Sourced(value=1.0, source=SOURCE),
            bandwidth_gb_s=Sourced(value=1.0, source=SOURCE),
        ),
    )
)


@pytest.fixture(scope="module")
def measured() -> Result:
    return measure_kernel(CELL, Measure.fixed(warmup=0, repeats=3), torch.device("cpu"))


def _lasting(measured: Result, time_ms: float, gpu: str = "") -> Result:
    assert measured.samples is not None
    nodes = tuple(node.model_copy(update={"gpu": {"name": gpu} if gpu else {}}) for node in measured.nodes)
    return measured.model_copy(
        update={"samples": measured.samples.model_copy(update={"time_ms": ((time_ms,) * 3,)}), "nodes": nodes}
    )


def test_what_was_measured_is_plausible(measured: Result) -> None:
    assert measured.outcome.status == "ok" and plausible(CELL, measured, GPU) == measured


@pytest.mark.parametrize("gpu", ["", "G"])
def test_what_no_device_does_has_no_speed(measured: Result, gpu: str) -> None:
    flops = CELL.flops(measured.mask.area, measured.mask.num_groups)
    result = plausible(CELL, _lasting(measured, 1e-6, gpu), GPU)
    assert result.outcome.status == "implausible" and "more than this device can do" in result.outcome.reason
    assert result.samples is None and result.accuracy == measured.accuracy
    if gpu:
        assert plausible(CELL, _lasting(measured, flops / 1.2e9, gpu), GPU).outcome.status == "ok", (
            "a clock above the maker's"
        )
        assert plausible(CELL, _lasting(measured, flops / 1.3e9, gpu), GPU).outcome.status == "implausible"


def test_of_an_unknown_gpu_nothing_is_said(measured: Result) -> None:
    assert plausible(CELL, _lasting(measured, 1e-6, "unknown"), GPU).outcome.status == "ok"
