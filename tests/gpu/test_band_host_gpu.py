"""Repeated calls of band attention on a GPU: the same bits as calls that run as written, in CUDA graphs, on
streams, compiled."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from longca.masks import build_mask
from tests.helpers.gpu.device import GPU, needs_gpu

pytestmark = needs_gpu
SEQLEN = 4096 + 128 + 3
MASKS = {
    "causal": {},
    "causal_document": {"corpus": "prolong64k"},
    "global_sliding_window": {},
    "block_sparse_variable": {},
}


def plan_of(name: str, heads: tuple[int, int] = (16, 2), head_dim: int = 128, **how: Any) -> Any:
    from longca.ops.band.api import plan_band_attention

    mask = build_mask(name, seqlen=SEQLEN, seed=1, num_kv_heads=heads[1], **MASKS.get(name, {}))
    return plan_band_attention(
        mask, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, device=GPU, **how
    )


def inputs_of(
    plan: Any, dtype: torch.dtype = torch.bfloat16, seed: int = 0, packed: bool = False
) -> list[Tensor]:
    """(q, k, v, dout); packed: as they lie in one projection."""
    generator = torch.Generator(GPU).manual_seed(seed)
    counts = (plan.num_q_heads, plan.num_kv_heads, plan.num_kv_heads, plan.num_q_heads)
    x = torch.randn(plan.seqlen_q, sum(counts), plan.head_dim, generator=generator, device=GPU, dtype=dtype)
    return [part if packed else part.contiguous() for part in x.split(counts, 1)]


def both(plan: Any, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[Tensor]:
    """(out, LSE, dq, dk, dv) by autograd."""
    from longca.ops.band.api import band_attention

    q, k, v = leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = band_attention(q, k, v, plan, return_lse=True)
    return [out, lse, *torch.autograd.grad(out, leaves, dout)]


def by_parts(plan: Any, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[Tensor]:
    """By the raw functions: carried onto itself, gradients in float32, dQ added to that of other keys."""
    from longca.ops.band.api import band_backward, band_backward_onto, band_forward

    out, lse = band_forward(q, k, v, plan, out_dtype=torch.float32)
    out, lse = band_forward(q, k, v, plan, initial=(out, lse), into=(out, lse))
    grads = band_backward(q, k, v, out, lse, dout, plan, grad_dtype=torch.float32)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    return [out, lse, *grads, dq, *band_backward_onto(q, k, v, out, lse, dout, plan, [(plan, grads[0], dq)])]


def same(first: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(first, other, strict=True)
    )


@pytest.fixture
def through_jit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Launches for which Triton looks for the build."""
    import triton

    launches = []
    run = triton.JITFunction.run

    def note(self: triton.JITFunction, *args: Any, **how: Any) -> Any:
        launches.append(self)
        return run(self, *args, **how)

    monkeypatch.setattr(triton.JITFunction, "run", note)
    yield launches


@pytest.mark.parametrize("way", [both, by_parts])
@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype"),
    [((16, 2), 128, torch.bfloat16), ((4, 4), 128, torch.float16), ((6, 2), 64, torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("name", MASKS)
def test_the_same_bits_as_calls_that_run_as_written(
    name: str, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, way: Any, through_jit: list[Any]
) -> None:
    plan = plan_of(name, heads, head_dim)
    for packed in (False, True):
        way(plan, *inputs_of(plan, dtype, packed=packed))
        for seed in (1, 2):
            inputs = inputs_of(plan, dtype, seed, packed)
            through_jit.clear()
            repeated = way(plan, *inputs)
            assert not through_jit, "not repeated: the version of Triton may be another"
            written = way(replace(plan), *inputs)
            assert through_jit and same(repeated, written)


def test_more_calls_than_a_block_of_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    from longca.ops.band.replay import launches

    monkeypatch.setattr(launches, "COUNTERS", 5)
    plan = plan_of("causal_document")
    inputs = inputs_of(plan)
    right = both(plan, *inputs)
    results = [both(plan, *inputs) for _ in range(40)]
    assert all(same(right, result) for result in results)


def test_in_a_cuda_graph_beside_calls() -> None:
    """A graph that is replayed counts from 0 each time, whatever calls around it do."""
    plan = plan_of("causal_document")
    inputs = inputs_of(plan)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(plan, *inputs)
        both(plan, *inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(plan, *inputs)
    for seed in (3, 4, 5):
        for x, new in zip(inputs, inputs_of(plan, seed=seed), strict=True):
            x.copy_(new)
        graph.replay()
        assert same([x.clone() for x in captured], both(plan, *inputs))


def test_a_first_call_in_a_cuda_graph() -> None:
    """A launch that is recorded while a graph is captured is right outside of it."""
    plan = plan_of("causal")
    inputs = inputs_of(plan)
    right = both(replace(plan), *inputs)  # compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(plan, *inputs)
    graph.replay()
    assert same(captured, right) and same(both(plan, *inputs), right)
    del graph, captured
    assert same(both(plan, *inputs), right)


def test_on_several_streams() -> None:
    plan = plan_of("causal_document")
    inputs = inputs_of(plan)
    right = both(plan, *inputs)
    results = []
    for stream in [torch.cuda.Stream() for _ in range(12)]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(both(plan, *inputs))
    torch.cuda.synchronize()
    assert all(same(right, result) for result in results)


def test_an_address_that_is_no_multiple_of_16_bytes() -> None:
    from longca.ops.band.api import band_backward, band_forward

    plan = plan_of("causal")
    q, k, v, dout = inputs_of(plan)
    out, lse = band_forward(q, k, v, plan)
    right = band_backward(q, k, v, out, lse, dout, plan)
    shifted = lse.new_empty(lse.numel() + 1)[1:].view(lse.shape).copy_(lse)
    for _ in range(2):
        assert same(band_backward(q, k, v, out, shifted, dout, plan), right)
        assert same(band_backward(q, k, v, out, lse, dout, plan), right)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode: str | None) -> None:
    """The operator that torch.compile sees, of a plan whose calls are known, and not."""
    from longca.ops.band.api import band_attention

    plan = plan_of("causal_document")
    q, k, v, dout = inputs_of(plan)
    right = both(plan, q, k, v, dout)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: band_attention(q, k, v, plan, return_lse=True), fullgraph=True, mode=mode
    )
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out, lse = (x.clone() for x in compiled(*leaves))
        assert same([out, lse, *torch.autograd.grad(out, leaves, dout)], right)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_another_gpu_than_the_current_one() -> None:
    from longca.ops.band.api import plan_band_attention

    mask = build_mask("causal", seqlen=1024)
    results = []
    for device in ("cuda:0", "cuda:1"):
        plan = plan_band_attention(mask, num_q_heads=16, num_kv_heads=2, head_dim=128, device=device)
        inputs = [x[:1024].to(device).contiguous() for x in inputs_of(plan_of("causal"))]
        results += [[x.cpu() for x in both(plan, *inputs)] for _ in range(3)]
    assert all(same(results[0], result) for result in results)
