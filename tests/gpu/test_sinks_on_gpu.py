"""Learnable sinks on a GPU: `longca.attention` by `band` and by other kernels against the reference in
float64, forward and backward; the sum over rows of their gradient; strategies on two GPUs."""

from typing import Any

import pytest
import torch

import longca
from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from longca.cp.context import context_parallel
from longca.dispatch.choice import cannot
from longca.kernels.contract import Problem
from longca.masks import Mask, build_mask
from longca.ops import sinks
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.gpu.device import GPU, needs_gpu

pytestmark = needs_gpu
SEQLEN = 4096 + 128 + 3
HEADS = (8, 2)
SINKS = torch.tensor([1.0, -3.0, 8.0, 0.0, 2.0, 5.0, -1.0, -torch.inf])
ROWS_WITHOUT_KEYS = Mask.from_bands(
    SEQLEN, [[100, 3000, 0, 3000, -700, 0], [3500, SEQLEN, 50, 4000, -torch.inf, 9]]
)
MASKS = {
    "causal": build_mask("causal", seqlen=SEQLEN),
    "documents": Mask.from_documents([1300, 1, 2000, SEQLEN - 3301]),
    "window": build_mask("causal_sliding_window", seqlen=SEQLEN, window=127),
    "rows without keys": ROWS_WITHOUT_KEYS,
    "fewer queries": build_mask("causal", seqlen=SEQLEN).crop((SEQLEN - 600, SEQLEN), (0, SEQLEN)),
}


def inputs(mask: Mask, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """q, k, v, sinks and dout."""
    generator = torch.Generator(GPU).manual_seed(5)
    lengths = (mask.seqlen_q, mask.seqlen_k, mask.seqlen_k, mask.seqlen_q)
    q, k, v, dout = (
        torch.randn(length, heads, head_dim, generator=generator, device=GPU).to(dtype)
        for length, heads in zip(lengths, (*HEADS, HEADS[1], HEADS[0]), strict=True)
    )
    return [q, k, v, SINKS.to(GPU), dout]


def both_ways(
    given: list[torch.Tensor], mask: Mask, *, by_lse: bool = False, **options: Any
) -> list[torch.Tensor]:
    """out, LSE, dq, dk, dv and the gradient of the sinks."""
    leaves = [x.clone().requires_grad_() for x in given[:4]]
    out, lse = longca.attention(*leaves[:3], mask, sinks=leaves[3], return_lse=True, **options)
    results = [out, lse] if by_lse else [out]
    dlse = lse.detach().masked_fill(lse.detach() == -torch.inf, 0.0).sin()
    grads = torch.autograd.grad(results, leaves, [given[4].to(out.dtype), dlse.to(lse.dtype)][: len(results)])
    return [out.detach(), lse.detach(), *grads]


def assert_near(actual: list[torch.Tensor], wanted: list[torch.Tensor], what: str) -> None:
    tolerances = {"out": 1e-2, "lse": 1e-4, "dq": 2e-2, "dk": 2e-2, "dv": 2e-2, "dsinks": 1e-2}
    for (name, tolerance), x, right in zip(tolerances.items(), actual, wanted, strict=True):
        x, right = (y.double().masked_fill(y == -torch.inf, -1e3) for y in (x, right))
        assert float((x - right).norm() / right.norm()) < tolerance, (what, name)


@pytest.mark.parametrize("by_lse", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_band_with_sinks_is_right_and_repeats(name: str, head_dim: int, by_lse: bool) -> None:
    mask = MASKS[name]
    given = inputs(mask, head_dim)
    actual = both_ways(given, mask, kernel="band", by_lse=by_lse)
    wanted = both_ways([x.double() for x in given], mask, kernel="reference", by_lse=by_lse)
    assert_near(actual, wanted, name)
    assert all(
        torch.equal(*pair)
        for pair in zip(actual, both_ways(given, mask, kernel="band", by_lse=by_lse), strict=True)
    )
    empty = wanted[1][:, -1] == -torch.inf  # rows of the head without a sink
    assert (actual[0][empty] == 0).all() and (actual[2][empty] == 0).all()
    assert torch.equal(actual[1][empty], given[3].expand(int(empty.sum()), -1))


@pytest.mark.parametrize("kernel", Registry("kernel").names())
def test_sinks_join_the_results_of_other_kernels(kernel: str) -> None:
    mask = MASKS["causal"]
    plugin = Registry("kernel").load(kernel)
    problem = Problem(mask, *HEADS, 128, torch.bfloat16, GPU, needs_backward=True)
    if (reason := cannot(plugin, problem, True, False, with_sinks=True)) is not None:
        pytest.skip(reason)
    given = inputs(mask)
    actual = both_ways(given, mask, kernel=kernel, deterministic=False)
    assert_near(actual, both_ways([x.double() for x in given], mask, kernel="reference"), kernel)


def test_what_is_chosen_is_right_and_the_call_never_waits_for_the_gpu() -> None:
    mask = MASKS["documents"]
    given = inputs(mask)
    wanted = both_ways([x.double() for x in given], mask, kernel="reference")
    leaves = [x.clone().requires_grad_() for x in given[:4]]
    for mode in ("default", "error"):  # the first call plans and compiles
        torch.cuda.set_sync_debug_mode(mode)
        try:
            out = longca.attention(*leaves[:3], mask, sinks=leaves[3])
            grads = torch.autograd.grad(out, leaves, given[4])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_near([out.detach(), wanted[1], *grads], wanted, mode)


def test_the_gradient_of_the_sinks_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(MASKS["causal"])
    whole = both_ways(given, MASKS["causal"])
    monkeypatch.setitem(sinks.MOST_ELEMENTS, "cuda", 100_000)
    parts = both_ways(given, MASKS["causal"])
    torch.testing.assert_close(parts[-1], whole[-1], rtol=1e-4, atol=1e-4)


def parts_of_gradients(comm: Comm) -> dict[str, list[torch.Tensor]]:
    mask = MASKS["documents"]
    facts = {}
    for strategy in ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain"):
        cp = context_parallel(mask, strategy=strategy, num_q_heads=8, num_kv_heads=2, head_dim=128)
        q, k, v, leaf, dout = (x.to(cp.positions.device) for x in inputs(mask))
        leaves = [*(cp.shard(x).requires_grad_() for x in (q, k, v)), leaf.requires_grad_()]
        out = cp.attention(*leaves[:3], sinks=leaf)
        *grads, part = torch.autograd.grad(out, leaves, cp.shard(dout))
        facts[strategy] = [*(cp.unshard(x.detach()).cpu() for x in (out, *grads)), part.cpu()]
        cp.close()
    return facts


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_parts_of_the_gradient_add_up_over_two_gpus() -> None:
    mask = MASKS["documents"]
    wanted = [x.cpu() for x in both_ways([x.double() for x in inputs(mask)], mask, kernel="reference")]
    first, second = on_ranks(parts_of_gradients, 2, timeout_s=300.0, device_type="cuda")
    for strategy, (*results, part) in first.items():
        assert_near([results[0], wanted[1], *results[1:], part + second[strategy][-1]], wanted, strategy)
