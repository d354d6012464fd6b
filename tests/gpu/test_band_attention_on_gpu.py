"""Band attention at real sizes on a GPU: against float64, repeatable, compiled, in a CUDA graph, carried
on."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.lab.bench.check.inputs import Inputs
from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.bench.check.scope import affordable
from longca.lab.studies.record import Accuracy
from longca.masks import build_mask
from longca.masks.mask import Mask
from tests.helpers.gpu.device import GPU, needs_gpu

pytestmark = needs_gpu
MASKS = Registry("mask").names()
SEQLEN = 8192 + 128 + 3
WHOLE_BLOCKS = {"block_sparse_uniform": {"block": 64, "density": 0.3}, "block_causal_document": {}}


def mask_of(name: str, num_kv_heads: int, seqlen: int = SEQLEN) -> Mask:
    """A mask whose length is no multiple of any tile, where the pattern takes that; long enough for a global
    row to be split."""
    return build_mask(
        name,
        seqlen=seqlen // 1024 * 1024 if name in WHOLE_BLOCKS else seqlen,
        seed=1,
        num_kv_heads=num_kv_heads,
        corpus="prolong64k",
        **WHOLE_BLOCKS.get(name, {}),
    )


def problem_of(
    mask: Mask, heads: tuple[int, int], head_dim: int = 128, dtype: torch.dtype = torch.bfloat16
) -> Problem:
    return Problem(mask, *heads, head_dim, dtype, GPU, needs_backward=True)


def inputs_of(problem: Problem) -> Inputs:
    generator = torch.Generator(GPU).manual_seed(2)
    mask = problem.mask
    shapes = (
        (mask.seqlen_q, problem.num_q_heads),
        *[(mask.seqlen_k, problem.num_kv_heads)] * 2,
        (mask.seqlen_q, problem.num_q_heads),
    )
    return Inputs(
        *(
            torch.randn(*shape, problem.head_dim, generator=generator, device=GPU, dtype=problem.dtype)
            for shape in shapes
        )
    )


def judged(problem: Problem, kernel: str = "band") -> Accuracy:
    """Both directions; the second backward must be bit-identical for this operator."""
    inputs = inputs_of(problem)
    oracle = Oracle(problem, inputs, scope=affordable(problem, 0))
    prepared = Registry("kernel").load(kernel).prepare(problem)
    q, k, v, dout = (
        prepared.to_layout(x) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, oracle.dout_THD)
    )
    forward = prepared.forward(q, k, v)
    grads = prepared.backward(forward, dout)
    if kernel == "band":
        assert all(
            torch.equal(first, other)
            for first, other in zip(grads, prepared.backward(forward, dout), strict=True)
        )
    assert forward.lse is not None
    dq, dk, dv = (prepared.from_layout(grad) for grad in grads)
    return oracle.judge(
        prepared.from_layout(forward.out), prepared.lse_from_layout(forward.lse), (dq, dk, dv)
    )


@pytest.mark.parametrize("heads", [(16, 2), (4, 4), (16, 1), (6, 2)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_is_right_and_repeats(name: str, heads: tuple[int, int]) -> None:
    assert (reason := wrong(judged(problem_of(mask_of(name, heads[1]), heads)))) is None, reason


@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(64, torch.bfloat16), (64, torch.float16), (128, torch.float16)], ids=str
)
@pytest.mark.parametrize("name", ["causal_document", "global_sliding_window", "block_sparse_variable"])
def test_other_builds(name: str, head_dim: int, dtype: torch.dtype) -> None:
    assert (reason := wrong(judged(problem_of(mask_of(name, 2), (16, 2), head_dim, dtype)))) is None, reason


@pytest.mark.parametrize("name", ["full", "causal", "causal_document", "sliding_window"])
def test_as_exact_as_flash_attention(name: str) -> None:
    problem = problem_of(mask_of(name, 2), (16, 2))
    ours = judged(problem).relative
    theirs = judged(problem, "torch_flash").relative
    for result in ("out", "dq", "dk", "dv"):
        assert ours[result] <= 1.1 * theirs[result], (result, ours, theirs)


def check_plan(name: str, heads: tuple[int, int], *, repeats: bool, **how: Any) -> None:
    """Results of a plan that is made in another way."""
    from longca.ops.band.api import band_backward, band_forward, plan_band_attention

    problem = problem_of(mask_of(name, heads[1]), heads)
    inputs = inputs_of(problem)
    oracle = Oracle(problem, inputs, scope=affordable(problem, 0))
    plan = plan_band_attention(
        problem.mask, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=128, device=GPU, **how
    )
    q = inputs.q_THD
    k = inputs.k_TGD
    v = inputs.v_TGD
    out, lse = band_forward(q, k, v, plan)
    grads, again = (band_backward(q, k, v, out, lse, oracle.dout_THD, plan) for _ in range(2))
    assert (reason := wrong(oracle.judge(out, lse, grads))) is None, reason
    assert not repeats or all(torch.equal(first, other) for first, other in zip(grads, again, strict=True))


@pytest.mark.parametrize("heads", [(16, 2), (4, 4), (16, 1), (6, 2)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_in_any_order(name: str, heads: tuple[int, int]) -> None:
    """Gradients of a plan that need not repeat."""
    check_plan(name, heads, repeats=False, deterministic=False)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="for Hopper"
)
@pytest.mark.parametrize("heads", [(16, 2), (4, 4), (12, 6)], ids=str)
@pytest.mark.parametrize("name", ["causal", "causal_document", "sliding_window", "block_sparse_variable"])
@pytest.mark.parametrize(
    "way", ["dK and dV alone", "dQ alone", "from the last row", "from the first row", "two heads at once"]
)
def test_hopper_kernels_where_another_is_chosen(way: str, name: str, heads: tuple[int, int]) -> None:
    from longca.ops.band.config import PORTABLE_TILES, SM90_DKDV, SM90_DQ, BandKernel, choose_tiles
    from longca.ops.band.tables.backward_rule import AddOrder

    last, first = (
        choose_tiles(128, (9, 0), dq_order=order)[BandKernel.DKDV]
        for order in (AddOrder.FROM_LAST, AddOrder.FROM_FIRST)
    )
    ways = {
        "dK and dV alone": {BandKernel.DKDV: SM90_DKDV, BandKernel.DQ: PORTABLE_TILES[128][BandKernel.DQ]},
        "dQ alone": {BandKernel.DKDV: PORTABLE_TILES[128][BandKernel.DKDV], BandKernel.DQ: SM90_DQ},
        "from the last row": {BandKernel.DKDV: last},
        "from the first row": {BandKernel.DKDV: first},
        "two heads at once": {BandKernel.DKDV: replace(first, kv_heads_per_section=1, rounds_per_section=2)},
    }
    check_plan(
        name,
        heads,
        repeats=True,
        tiles={BandKernel.FORWARD: PORTABLE_TILES[128][BandKernel.FORWARD], **ways[way]},
    )


def test_carried_on() -> None:
    """Two parts of the keys, one after the other, with their gradients added up in float32: as right as the
    whole."""
    from longca.ops.band.api import band_backward, band_forward, plan_band_attention

    for name in ("causal_document", "global_sliding_window"):
        mask = mask_of(name, 2)
        problem = problem_of(mask, (16, 2))
        inputs = inputs_of(problem)
        middle = mask.seqlen_k // 3
        oracle = Oracle(problem, inputs, scope=affordable(problem, 0))
        q = inputs.q_THD
        k = inputs.k_TGD
        v = inputs.v_TGD
        parts = [
            (
                slice(*cols),
                plan_band_attention(
                    mask.crop((0, mask.seqlen_q), cols),
                    num_q_heads=16,
                    num_kv_heads=2,
                    head_dim=128,
                    device=GPU,
                ),
            )
            for cols in ((0, middle), (middle, mask.seqlen_k))
        ]
        known = None
        for cols, plan in parts:
            known = band_forward(
                q, k[cols], v[cols], plan, initial=known, into=known, out_dtype=torch.float32
            )
        assert known is not None
        grads = [
            band_backward(q, k[cols], v[cols], *known, oracle.dout_THD, plan, grad_dtype=torch.float32)
            for cols, plan in parts
        ]
        dk, dv = (torch.cat([grad[index] for grad in grads]) for index in (1, 2))
        accuracy = oracle.judge(
            known[0].bfloat16(),
            known[1],
            ((grads[0][0] + grads[1][0]).bfloat16(), dk.bfloat16(), dv.bfloat16()),
        )
        assert (reason := wrong(accuracy)) is None, reason


def test_the_public_call() -> None:
    """Autograd, torch.compile by Inductor, layouts, refusals."""
    from tests.helpers.ops.band_public import main

    main("cuda", torch.bfloat16, "inductor")


def test_in_a_cuda_graph() -> None:
    """Both directions captured, and run again on other inputs in the same memory."""
    from longca.ops.band.api import band_attention, plan_band_attention

    problem = problem_of(mask_of("global_sliding_window", 2), (16, 2))
    inputs = inputs_of(problem)
    plan = plan_band_attention(problem.mask, num_q_heads=16, num_kv_heads=2, head_dim=128, device=GPU)
    leaves = [x.clone().requires_grad_() for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD)]

    def both() -> tuple[torch.Tensor, ...]:
        out = band_attention(*leaves, plan)
        assert isinstance(out, torch.Tensor)
        return out, *torch.autograd.grad(out, leaves, inputs.dout_THD)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    with torch.no_grad():
        for x in leaves:
            x.mul_(0.7)
    graph.replay()
    actual = [x.clone() for x in captured]
    assert all(torch.equal(first, other) for first, other in zip(actual, both(), strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_another_gpu_than_the_current_one() -> None:
    from longca.ops.band.api import band_attention

    problem = problem_of(mask_of("causal_document", 2), (16, 2))
    inputs = inputs_of(problem)
    results = []
    for device in ("cuda:0", "cuda:1"):
        q, k, v, dout = (x.to(device) for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD, inputs.dout_THD))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = band_attention(*leaves, problem.mask)
        assert isinstance(out, torch.Tensor)
        results.append([out, *torch.autograd.grad(out, leaves, dout)])
    assert all(torch.equal(first.cpu(), other.cpu()) for first, other in zip(*results, strict=True))


def test_the_call_never_waits_for_the_gpu() -> None:
    from longca.ops.band.api import band_attention, plan_band_attention

    problem = problem_of(mask_of("causal", 2), (16, 2))
    inputs = inputs_of(problem)
    leaves = [x.clone().requires_grad_() for x in (inputs.q_THD, inputs.k_TGD, inputs.v_TGD)]
    plan = plan_band_attention(problem.mask, num_q_heads=16, num_kv_heads=2, head_dim=128, device=GPU)
    for mode in ("default", "error"):  # the first compiles
        torch.cuda.set_sync_debug_mode(mode)
        try:
            out = band_attention(*leaves, plan)
            assert isinstance(out, torch.Tensor)
            torch.autograd.grad(out, leaves, inputs.dout_THD)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", MASKS)
def test_plans_of_512k_tokens(name: str) -> None:
    """Metadata of O(bands + tiles)."""
    from longca.ops.band.api import plan_band_attention

    params = {
        "block_sparse_uniform": {"block": 128, "density": 0.1},
        "block_sparse_variable": {"mean_block": 128, "density": 0.1},
    }
    mask = build_mask(name, seqlen=1 << 19, corpus="prolong512k", **params.get(name, {}))
    plan = plan_band_attention(mask, num_q_heads=64, num_kv_heads=8, head_dim=128, device=GPU)
    assert plan.num_bytes <= 64e6
