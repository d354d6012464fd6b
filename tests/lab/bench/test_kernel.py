"""Each cell has an outcome, even if its kernel misbehaves, and a wrong kernel never has a time."""

from pathlib import Path

import pytest
import torch

from longca.core.plugin import Registry
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.result import Result
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.lab.studies.outcome import Ok
from tests.helpers.bench.cells import small_cell, write_kernel

QUICK = Measure.fixed(warmup=1, repeats=4)
CPU = torch.device("cpu")

WRONG = {
    "sees one key too many": """
def _scores(self, q, k):
    self._hidden = self._hidden.roll(1, -1)
    return super()._scores(q, k)""",
    "forgets the scale": """
def _scores(self, q, k):
    return super()._scores(q * self.problem.head_dim ** 0.5, k)""",
    "gives NaN in one place": """
def forward(self, q, k, v):
    result = super().forward(q, k, v)
    result.out[-1, -1, -1, -1] = float("nan")
    return result""",
    "gives zeros": """
def forward(self, q, k, v):
    result = super().forward(q, k, v)
    result.out.zero_()
    return result""",
    "gives an LSE to base 2": """
def lse_from_layout(self, lse):
    return super().lse_from_layout(lse) * 1.4427""",
}
WRONG_BACKWARD = {
    "mixes up dk and dv": """
def backward(self, forward, dout):
    dq, dk, dv = super().backward(forward, dout)
    return dq, dv, dk""",
    "forgets half of dk": """
def backward(self, forward, dout):
    dq, dk, dv = super().backward(forward, dout)
    return dq, dk / 2, dv""",
    "gives infinity in one place": """
def backward(self, forward, dout):
    dq, dk, dv = super().backward(forward, dout)
    dq[0, 0, 0, 0] = float("inf")
    return dq, dk, dv""",
}
RAISING = {
    "def __init__(self, problem):\n    raise RuntimeError('no plan')": ("error", "prepare"),
    "def forward(self, q, k, v):\n    raise ValueError('no kernel')": ("error", "fwd"),
    "def backward(self, forward, dout):\n    return 1 / 0": ("error", "bwd"),
    "def from_layout(self, x):\n    return x.flatten()": ("error", "oracle"),
    "def to_layout(self, x):\n    raise torch.OutOfMemoryError('CUDA out of memory. GPU 0 has')": (
        "oom",
        "inputs",
    ),
    "def forward(self, q, k, v):\n    return Forward(torch.empty(1 << 46))": ("oom", "fwd"),
    "def backward(self, forward, dout):\n    raise MemoryError": ("oom", "bwd"),
}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_a_good_kernel_is_timed(kernel: str, direction: str) -> None:
    result = measure_kernel(small_cell(kernel, direction=direction), QUICK, CPU)
    assert result.outcome == Ok()
    assert (
        result.samples is not None
        and len(result.samples.time_ms) == 1
        and len(result.samples.time_ms[0]) == 4
    )
    assert all(value > 0 for value in result.samples.time_ms[0])
    assert (
        result.accuracy is not None
        and result.accuracy.reference == "float64"
        and result.accuracy.scope == "all"
    )
    assert {"dq", "dk", "dv"} <= result.accuracy.relative.keys() or direction == "fwd"
    assert all(error <= result.accuracy.budget[name] for name, error in result.accuracy.relative.items())
    assert result.memory is not None and result.memory.source == "resident_set"
    assert result.mask is not None and result.mask.area > 0 and result.mask.drawn["num_documents"] >= 1
    assert {"mask_ms", "plan_ms", "oracle_ms"} <= result.costs.keys()
    assert len(result.nodes) == 1 and result.software is not None
    assert Result.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("flaw", WRONG)
def test_a_wrong_kernel_is_incorrect(flaw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel("flawed", WRONG[flaw], tmp_path, monkeypatch)
    _is_incorrect(small_cell("flawed"))


@pytest.mark.parametrize("flaw", WRONG_BACKWARD)
def test_a_wrong_backward_is_incorrect(flaw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel("flawed", WRONG_BACKWARD[flaw], tmp_path, monkeypatch)
    assert measure_kernel(small_cell("flawed"), QUICK, CPU).outcome.status == "ok"
    _is_incorrect(small_cell("flawed", direction="bwd"))


def _is_incorrect(cell: Cell) -> None:
    result = measure_kernel(cell, QUICK, CPU)
    assert result.outcome.status == "incorrect"
    assert result.samples is None and result.memory is None
    assert result.accuracy is not None
    assert Result.model_validate_json(result.model_dump_json()) == result  # NaN would not survive


@pytest.mark.parametrize("body", RAISING)
def test_what_is_raised_becomes_an_outcome(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, stage = RAISING[body]
    write_kernel("raising", body, tmp_path, monkeypatch)
    result = measure_kernel(small_cell("raising", direction="bwd"), QUICK, CPU)
    assert result.outcome.status == status
    where = (
        result.outcome.where
        if status == "oom"
        else result.outcome.log.splitlines()[0].removeprefix("while at: ")
    )
    assert where == stage
    assert result.mask is not None and result.samples is None


def test_how_much_was_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel(
        "big", "def forward(self, q, k, v):\n    return Forward(torch.empty(1 << 46))", tmp_path, monkeypatch
    )
    assert measure_kernel(small_cell("big"), QUICK, CPU).outcome.requested_bytes == 4 << 46


def test_reasons_come_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flex = measure_kernel(small_cell("flex", direction="bwd"), QUICK, CPU)
    assert (
        flex.outcome.status == "unsupported"
        and "backward on CPU" in flex.outcome.reason
        and flex.mask is not None
    )
    write_kernel("absent", "pass", tmp_path, monkeypatch)
    path = tmp_path / "kernels" / "absent.py"
    path.write_text(
        path.read_text().replace("    label, summary", '    needs = ("no_such_module",)\n    label, summary')
    )
    absent = measure_kernel(small_cell("absent"), QUICK, CPU)
    assert absent.outcome.status == "unavailable" and "no_such_module" in absent.outcome.reason


def test_a_mask_that_cannot_be_is_an_outcome() -> None:
    result = measure_kernel(small_cell(mask="block_sparse_uniform", seqlen=100), QUICK, CPU)
    assert result.outcome.status == "error" and "multiple of the block" in result.outcome.message


def test_control_is_judged_by_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longca.kernels.backends.control.BUDGET", 50.0)  # whatever else this machine is doing
    result = measure_kernel(small_cell("control", "full"), QUICK, CPU)
    assert result.outcome.status == "ok" and result.accuracy is not None
    assert result.accuracy.reference == "nominal duration" and result.accuracy.relative.keys() == {"time"}
    assert all(value >= 0.5 for value in result.samples.time_ms[0])
    monkeypatch.setattr("longca.kernels.backends.control.BUDGET", -1.0)
    result = measure_kernel(small_cell("control", "full"), QUICK, CPU)
    assert (
        result.outcome.status == "incorrect"
        and "time is off by" in result.outcome.reason
        and result.samples is None
    )


@pytest.mark.parametrize(
    "kernel",
    [name for name in Registry("kernel").names() if Registry("kernel").load(name).family == "control"],
)
def test_controls_run_on_any_machine(kernel: str) -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        result = measure_kernel(small_cell(kernel, "full", dtype=dtype), QUICK, CPU)
        assert result.outcome.status in ("ok", "incorrect")  # the wait may be late where the machine is busy
        assert (
            result.accuracy is not None and result.accuracy.budget.keys() == result.accuracy.relative.keys()
        )
        assert kernel == "control" or result.outcome.status == "ok"
        assert Result.model_validate_json(result.model_dump_json()) == result


SPOILED = {
    "matmul": ("MatmulPrepared", lambda self: self._out.zero_()),
    "device_copy": ("DeviceCopyPrepared", lambda self: self._copy[1:].copy_(self._source[1:])),
}


@pytest.mark.parametrize("kernel", SPOILED)
def test_a_ceiling_is_no_speed_where_its_result_is_wrong(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, call = SPOILED[kernel]
    monkeypatch.setattr(f"longca.kernels.backends.{kernel}.{name}.call", call)
    result = measure_kernel(small_cell(kernel, "full"), QUICK, CPU)
    assert result.outcome.status == "incorrect" and result.samples is None
    assert Result.model_validate_json(result.model_dump_json()) == result
