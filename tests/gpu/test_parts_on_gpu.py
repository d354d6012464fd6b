"""Kernels over the steps of context-parallel plans, all ranks on one GPU: merged results, and gradients by
the LSE over all keys."""

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.lab.studies.cell import Cell
from longca.masks import build_mask
from tests.helpers.cp.parts import in_parts
from tests.helpers.gpu.device import needs_gpu
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention

pytestmark = needs_gpu
WORLD = 3
STEPS = {"ring": (Ring(), "ring_p2p"), "gather": (Gather(2), "ring_allgather")}
MASKS = {
    "full": "contiguous",
    "causal": "zigzag",
    "causal_document": "contiguous",
    "sliding_window": "stripes",
    "prefix_lm": "heap-128",
    "block_sparse_uniform": "contiguous",
}
KERNELS = [name for name in Registry("kernel").names() if Registry("kernel").load(name).returns_lse]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("schedule", STEPS)
@pytest.mark.parametrize("name", KERNELS)
def test_parts_are_the_whole(name: str, schedule: str, mask: str) -> None:
    params = (
        {"window": 150}
        if mask == "sliding_window"
        else {"block": 64, "density": 0.5}
        if mask == "block_sparse_uniform"
        else {}
    )
    case = Case(
        build_mask(mask, seqlen=1024 if "block" in mask else 1021, num_kv_heads=2, **params),
        8,
        2,
        head_dim=128,
    )
    kernel = Registry("kernel").load(name)
    steps, strategy = STEPS[schedule]
    cell = Cell(
        **case.cell(name, "bwd", "bf16").model_dump() | {"kind": "cp", "strategy": strategy, "world": WORLD}
    )
    problem = case.problem("bwd", torch.bfloat16, "cuda")
    reason = (
        kernel.available("cuda")
        or kernel.in_parts(cell.call_spec, "cuda")
        or _misfit(problem, kernel, steps, MASKS[mask], cell)
    )
    if reason is not None:
        pytest.skip(reason)
    inputs = case.inputs(torch.bfloat16, "cuda")
    got = in_parts(problem, kernel, WORLD, steps, MASKS[mask], *inputs)
    right = plain_attention(*inputs, case.mask.dense())
    for what, result, expected in zip(
        ("out", "lse", "dq", "dk", "dv"),
        (got.out, got.lse, *got.grads),
        (right.out, right.lse, *right.grads),
        strict=True,
    ):
        error = float((result.double().cpu() - expected).norm() / expected.norm())
        assert error < 0.012, f"{what} is off by {error:.1e}"  # bf16, rounded in each part


def _misfit(problem, kernel, schedule: Gather | Ring, permutation: str, cell: Cell) -> str | None:
    from longca.cp.partition.sharding import make_sharding
    from longca.cp.schedule.planner import active_rows

    plan = schedule.plan(problem.mask, make_sharding(permutation, problem.mask, WORLD))
    masks = (active_rows(step)[2] for rank in range(WORLD) for step in plan.steps(rank))
    return next(filter(None, (kernel.supports(cell.call_spec, mask.traits, "cuda") for mask in masks)), None)
