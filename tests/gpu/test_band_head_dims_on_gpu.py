"""Band attention's Hopper kernels for head dim 64 at real sizes on a GPU: against float64, with the
same bits in four runs.

    python -m pytest tests/gpu/test_band_head_dims_on_gpu.py
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from longca.lab.bench.check.oracle import Oracle, wrong
from longca.lab.bench.check.scope import affordable
from longca.masks.mask import Mask
from longca.ops.band.api import band_backward, band_forward, plan_band_attention
from longca.ops.band.config import SM90_TILES, BandKernel, TileConfig
from longca.ops.band.tables.backward_rule import AddOrder
from tests.gpu.test_band_attention_on_gpu import MASKS, inputs_of, judged, mask_of, problem_of
from tests.helpers.gpu.device import GPU, needs_gpu
from tests.helpers.kernels.random_bands import random_bands

HOPPER = (9, 0)
pytestmark = [
    *needs_gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER, reason="for Hopper"
    ),
]
RUNS = 4
DTYPES = (torch.bfloat16, torch.float16)


def ways() -> Iterator[tuple[str, dict[BandKernel, TileConfig]]]:
    """The tiles of each way to the gradients, chosen or not."""
    hopper = SM90_TILES[64]
    forward = {BandKernel.FORWARD: hopper.forward}
    yield "two kernels", {**forward, BandKernel.DKDV: hopper.dkdv, BandKernel.DQ: hopper.dq}
    yield (
        "two kernels, other tiles",
        {
            BandKernel.FORWARD: replace(hopper.forward, block_m=192, num_stages=2),
            BandKernel.DKDV: hopper.dkdv,
            BandKernel.DQ: replace(hopper.dq, block_n=64),
        },
    )
    for order in AddOrder:
        fused = replace(hopper.fused, in_order=order, stores_first=order is AddOrder.FROM_FIRST)
        yield f"one pass, {order.name}", {**forward, BandKernel.DKDV: fused}


WAYS = dict(ways())


def check(
    mask: Mask,
    heads: tuple[int, int],
    dtype: torch.dtype,
    tiles: dict[BandKernel, TileConfig] | None = None,
    *,
    repeats: bool = True,
) -> None:
    problem = problem_of(mask, heads, 64, dtype)
    inputs = inputs_of(problem)
    oracle = Oracle(problem, inputs, scope=affordable(problem, 0))
    plan = plan_band_attention(
        mask, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=64, device=GPU, tiles=tiles
    )
    assert plan.kernels[BandKernel.FORWARD][1].sm90
    q = inputs.q_THD
    k = inputs.k_TGD
    v = inputs.v_TGD
    dout = oracle.dout_THD
    results = []
    for _ in range(RUNS):
        out, lse = band_forward(q, k, v, plan)
        results.append((out, lse, *band_backward(q, k, v, out, lse, dout, plan)))
    out, lse, *grads = results[0]
    assert (reason := wrong(oracle.judge(out, lse, tuple(grads)))) is None, reason
    for others in results[1:]:
        exact = list(zip(results[0], others, strict=True))[: None if repeats else 2]
        assert all(torch.equal(first, other) for first, other in exact), "other bits"


@pytest.mark.parametrize("heads", [(16, 2), (4, 4), (16, 1), (6, 2)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_as_it_is_chosen(name: str, heads: tuple[int, int]) -> None:
    assert (reason := wrong(judged(problem_of(mask_of(name, heads[1]), heads, 64)))) is None, reason


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_random_bands_in_each_way(seed: int, way: str, dtype: torch.dtype) -> None:
    mask = random_bands(seed, 2000 + 517 * seed, 2600 - 333 * seed, 12)
    heads = ((8, 2), (4, 4), (6, 2), (16, 1))[seed]
    check(mask, heads, dtype, WAYS[way], repeats=way != "one pass, ANY")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["causal", "causal_document", "sliding_window", "global_sliding_window"])
def test_long_masks_in_each_way(name: str, way: str) -> None:
    check(mask_of(name, 2), (16, 2), torch.bfloat16, WAYS[way], repeats=way != "one pass, ANY")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["causal_document", "global_sliding_window", "block_sparse_variable"])
def test_dtypes_as_they_are_chosen(name: str, dtype: torch.dtype) -> None:
    check(mask_of(name, 2), (16, 2), dtype)


@pytest.mark.parametrize("name", ["causal_document", "global_sliding_window"])
def test_merged_with_other_keys(name: str) -> None:
    """Two parts of the keys, one after the other, with float32 results."""
    mask = mask_of(name, 2)
    problem = problem_of(mask, (16, 2), 64)
    inputs = inputs_of(problem)
    oracle = Oracle(problem, inputs, scope=affordable(problem, 0))
    q = inputs.q_THD
    k = inputs.k_TGD
    v = inputs.v_TGD
    middle = mask.seqlen_k // 3
    known = None
    plans = []
    for start, end in ((0, middle), (middle, mask.seqlen_k)):
        part = mask.crop((0, mask.seqlen_q), (start, end))
        plans.append(plan_band_attention(part, num_q_heads=16, num_kv_heads=2, head_dim=64, device=GPU))
        keys = k[start:end]
        values = v[start:end]
        known = band_forward(q, keys, values, plans[-1], initial=known, into=known, out_dtype=torch.float32)
    assert known is not None
    dout = oracle.dout_THD
    first, second = (
        band_backward(q, k[cols], v[cols], *known, dout, plan, grad_dtype=torch.float32)
        for cols, plan in zip((slice(middle), slice(middle, None)), plans, strict=True)
    )
    dk, dv = (torch.cat([first[index], second[index]]).to(q.dtype) for index in (1, 2))
    accuracy = oracle.judge(known[0].to(q.dtype), known[1], ((first[0] + second[0]).to(q.dtype), dk, dv))
    assert (reason := wrong(accuracy)) is None, reason
