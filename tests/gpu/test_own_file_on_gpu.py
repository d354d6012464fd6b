"""A kernel in a file of its own on a real GPU: the templates, and one that torch.compile compiles."""

from pathlib import Path

import pytest

from longca.core.plugin import PACKAGE_ROOT
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.run.own_file import _as_plugin, compare_own_file
from longca.lab.studies.study import Measure
from tests.gpu.device import GPU, needs_gpu
from tests.lab.bench.cells import small_cell

pytestmark = needs_gpu
COMPILED = """import torch


@torch.compile
def attend(q, k, v):
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.float().masked_fill(future, float("-inf")).softmax(-1).to(v.dtype) @ v


def forward(q, k, v, mask):
    num_copies = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(num_copies, 1), v.repeat_interleave(num_copies, 1))
"""


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("template", ["kernel_function", "kernel", "compiled"])
def test_it_is_right(tmp_path: Path, template: str, direction: str) -> None:
    path = tmp_path / f"own_{template}.py"
    path.write_text(
        COMPILED
        if template == "compiled"
        else (PACKAGE_ROOT / "lab/templates" / f"{template}.py").read_text()
    )
    with _as_plugin(path) as name:
        cell = small_cell(
            name,
            "causal",
            seqlen=1024,
            num_q_heads=8,
            num_kv_heads=2,
            head_dim=64,
            dtype="bf16",
            direction=direction,
        )
        result = measure_kernel(cell, Measure.fixed(warmup=1, repeats=3), GPU)
    assert result.outcome.status == "ok", result.outcome


def test_rivals_have_processes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "compiled.py"
    path.write_text(COMPILED)
    grid = {
        "mask": "causal",
        "seqlen": 1024,
        "heads": "8:2",
        "head_dim": 64,
        "dtype": "bf16",
        "direction": ["fwd", "bwd"],
    }
    run = compare_own_file(
        path, grid, Measure.fixed(warmup=1, repeats=3), rivals=["sdpa", "naive"], device="cuda"
    )
    assert [result.own.outcome.status for result in run.results] == ["ok", "ok"] and run.logs is None
    assert [[rival.outcome.status for rival in result.rivals] for result in run.results] == [["ok", "ok"]] * 2
