"""Elements past 2³¹: 262144 tokens × 64 heads × 128 are 2³¹ of them, and the longer length has offsets beyond
what 32 bits hold.

In token-major layouts these are the last rows, in head-major ones the last heads: the oracle looks at both.
"""

import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.lab.bench.check import scope
from longca.lab.bench.check.inputs import input_seed
from longca.lab.bench.check.scope import affordable
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.studies.cell import Cell
from longca.lab.studies.record import Outcome
from longca.lab.studies.study import Measure
from longca.masks.build import cell_mask
from tests.gpu.device import GPU, needs_gpu
from tests.lab.bench.cells import small_cell

pytestmark = needs_gpu
LENGTHS = [262144, 262144 + 8192]
ONCE = Measure.fixed(warmup=0, repeats=1)
PARAMS = {"block_sparse_uniform": {"block": 128, "density": 0.02}}
BUDGET_FLOPS = {
    "causal_sliding_window": 2e10,
    "full": 2e12,
    "block_sparse_uniform": 1e11,
}  # some tens of pieces of one KV head
KERNELS = {name: Registry("kernel").load(name).family for name in Registry("kernel").names()}


@pytest.mark.parametrize("seqlen", LENGTHS)
@pytest.mark.parametrize("kernel", [name for name, family in KERNELS.items() if family in ("dense", "both")])
def test_windows_or_else_the_full_mask(kernel: str, seqlen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for mask in ("causal_sliding_window", "full"):
        if _fate(kernel, mask, seqlen, monkeypatch).status == "ok":
            break


@pytest.mark.parametrize("seqlen", LENGTHS)
@pytest.mark.parametrize("kernel", [name for name, family in KERNELS.items() if family in ("sparse", "both")])
def test_blocks(kernel: str, seqlen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _fate(kernel, "block_sparse_uniform", seqlen, monkeypatch)


@pytest.mark.parametrize(
    ("kernel", "mask"),
    [
        ("flashmask", "causal_sliding_window"),
        ("fa2_sparse", "block_sparse_uniform"),
        ("band", "causal_sliding_window"),
        ("band", "block_sparse_uniform"),
    ],
)
def test_backward_of_the_project_s_own_operators(
    kernel: str, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _fate(kernel, mask, LENGTHS[-1], monkeypatch, direction="bwd").status in ("ok", "unavailable")


def _fate(
    kernel: str, mask_name: str, seqlen: int, monkeypatch: pytest.MonkeyPatch, direction: str = "fwd"
) -> Outcome:
    """Right, or refused with a reason, or out of memory; never wrong."""
    monkeypatch.setitem(scope.BUDGET_FLOPS, "cuda", BUDGET_FLOPS[mask_name])
    cell = _cell(kernel, mask_name, seqlen, direction)
    mask = cell_mask(cell)
    problem = Problem(
        mask, cell.num_q_heads, cell.num_kv_heads, cell.head_dim, torch.bfloat16, GPU, direction == "bwd"
    )
    checked = affordable(
        problem, input_seed(cell)
    )  # whatever the seed: the last rows, and rows of the last heads
    assert checked.is_sample and checked.kv_heads[-1] == cell.num_kv_heads - 1
    assert any(part.rows[-1] == cell.seqlen - 1 for part in checked.parts)
    result = measure_kernel(cell, ONCE, GPU)
    outcome = result.outcome
    print(cell.title, outcome, result.accuracy)
    assert outcome.status in ("ok", "unsupported", "unavailable", "oom"), outcome
    if outcome.status == "ok":
        assert result.accuracy is not None and "% of the rows of all heads" in result.accuracy.scope
    elif outcome.status == "oom":
        assert outcome.where in (
            "prepare",
            "inputs",
            "fwd",
            "oracle",
        )  # beside the mask as a matrix 80 GB have no room for a check
    else:
        assert outcome.reason
    return outcome


def _cell(kernel: str, mask: str, seqlen: int, direction: str) -> Cell:
    """64:8, or 64:64 for a kernel without GQA."""
    params = Registry("mask").load(mask).resolve(PARAMS.get(mask, {}))
    cell = small_cell(
        kernel,
        mask,
        direction,
        seqlen=seqlen,
        mask_params=params,
        num_q_heads=64,
        num_kv_heads=8,
        head_dim=128,
        dtype="bf16",
    )
    reason = Registry("kernel").load(kernel).supports(cell, cell_mask(cell).traits, "cuda")
    return _with(cell, num_kv_heads=64) if reason is not None and "no GQA" in reason else cell


def _with(cell: Cell, **changes: int) -> Cell:
    return Cell(**{**cell.model_dump(), **changes})
