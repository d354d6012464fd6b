"""Timer, memory, telemetry and outcomes on a real GPU."""

from pathlib import Path

import pytest
import torch

from longca.lab.bench.measure.environment import device_name, node
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.measurement import CellMeasurement
from longca.lab.bench.measure.memory import peak_memory
from longca.lab.bench.measure.nvml import open_gpu
from longca.lab.bench.measure.timer import time_calls
from longca.lab.bench.measure.timing.stopwatch import L2_FACTOR, CudaStopwatch
from longca.lab.studies.study import Measure
from tests.gpu.device import GPU, needs_gpu
from tests.lab.bench.cells import small_cell, write_kernel

pytestmark = needs_gpu
MIB = 1 << 20


@pytest.mark.parametrize("seqlen", [512, 4096, 32768])
def test_the_control_proves_the_timer(seqlen: int) -> None:
    result = measure_kernel(small_cell("control", "full", seqlen=seqlen), Measure(), GPU)
    assert result.outcome.status == "ok", result.outcome


def test_the_flush_is_as_large_as_the_l2_asks_for() -> None:
    before = torch.cuda.memory_allocated(GPU)
    stopwatch = CudaStopwatch(GPU)
    assert (
        torch.cuda.memory_allocated(GPU) - before
        >= L2_FACTOR * torch.cuda.get_device_properties(GPU).L2_cache_size
    )
    stopwatch.ready()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("kernel", "seqlen"), [("matmul", 1000), ("matmul", 8192), ("device_copy", 65536)])
def test_the_ceilings_are_right(kernel: str, seqlen: int, dtype: str) -> None:
    cell = small_cell(kernel, "full", seqlen=seqlen, num_q_heads=64, head_dim=128, dtype=dtype)
    result = measure_kernel(cell, Measure.fixed(warmup=1, repeats=3), GPU)
    assert result.outcome.status == "ok", result.outcome


def test_samples_come_with_clocks_where_nvml_reads_them() -> None:
    x = torch.randn(2048, 2048, device=GPU)
    samples = time_calls(lambda: x @ x, Measure.fixed(warmup=2, repeats=5), GPU)
    assert samples.timer == "cuda_event" and len(samples.time_ms[0]) == 5
    with open_gpu(GPU) as gpu:
        if gpu is not None:
            assert len(samples.sm_clock_mhz) == 5 and min(samples.sm_clock_mhz) > 0
            for query, readings in (("PowerUsage", samples.power_w), ("Temperature", samples.temperature_c)):
                argument = [gpu.nvml.NVML_TEMPERATURE_GPU] if query == "Temperature" else []
                assert gpu.read(query, *argument) is None or (len(readings) == 5 and min(readings) > 0)
            assert gpu.read("CurrentClocksEventReasons") is not None


def test_memory_is_the_call_s_own() -> None:
    kept = torch.ones(64 * MIB, dtype=torch.uint8, device=GPU)

    def call() -> torch.Tensor:
        scratch = torch.ones(96 * MIB, dtype=torch.uint8, device=GPU)
        return scratch[: 32 * MIB].clone()

    for _ in range(2):
        memory = peak_memory(call, GPU)
        assert memory is not None and memory.peak_bytes == (128 * MIB,)
        assert memory.absolute_peak_bytes[0] >= 128 * MIB + kept.numel()


def test_what_matrix_products_leave_is_released() -> None:
    """Else the workspace that the oracle's need would be held against the first strategy of a process."""
    trial = CellMeasurement(small_cell("control", "full", seqlen=512), Measure(), GPU)
    x = torch.randn(512, 512, device=GPU, dtype=torch.float64)
    for _ in range(2):
        trial.release_memory()
        before = torch.cuda.memory_allocated(GPU)
        y = x @ x
        del y
        trial.release_memory()
        assert torch.cuda.memory_allocated(GPU) == before


def test_after_too_much_memory_the_next_cell_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def forward(self, q, k, v):\n    return Forward(torch.empty(1 << 46, device=q.device))"
    write_kernel("big", body, tmp_path, monkeypatch)
    outcome = measure_kernel(small_cell("big"), Measure(), GPU).outcome
    assert outcome.status == "oom" and outcome.where == "fwd" and outcome.requested_bytes == 4 << 46
    assert measure_kernel(small_cell(), Measure(), GPU).outcome.status == "ok"


def test_the_gpu_is_described() -> None:
    gpu = node(GPU).gpu
    assert gpu["name"] == device_name(GPU) and gpu["memory_bytes"] > 1 << 30 and gpu["l2_bytes"] > 0
