"""Every kernel at sizes that fill a GPU, over every pattern: right, timed, or with a reason."""

import pytest
import torch

from longca.core.plugin import Registry
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.studies.grid import Measure
from tests.helpers.bench.cells import small_cell
from tests.helpers.gpu.device import GPU, needs_gpu

pytestmark = needs_gpu
QUICK = Measure.fixed(warmup=1, repeats=3)
KERNELS = [name for name in Registry("kernel").names() if Registry("kernel").load(name).family != "control"]


@pytest.mark.parametrize("heads", [(16, 2), (4, 4)], ids=["16:2", "4:4"])
@pytest.mark.parametrize("mask", Registry("mask").names())
@pytest.mark.parametrize("kernel", KERNELS)
def test_is_right_or_says_why_not(kernel: str, mask: str, heads: tuple[int, int]) -> None:
    for direction in ("fwd", "bwd"):
        cell = small_cell(
            kernel,
            mask,
            direction,
            seqlen=4096,
            num_q_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=128,
            dtype="bf16",
        )
        result = measure_kernel(cell, QUICK, GPU)
        assert result.outcome.status in ("ok", "unsupported", "unavailable"), result.outcome
        if result.outcome.status == "ok":
            assert result.samples is not None and result.samples.timer == "cuda_event"
            assert (
                result.memory is not None
                and result.memory.source == "cuda_allocator"
                and result.memory.peak_bytes[0] > 0
            )


@pytest.mark.parametrize("mask", ["causal", "causal_document", "prefix_lm"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_ragged_lengths(kernel: str, mask: str) -> None:
    for direction in ("fwd", "bwd"):
        cell = small_cell(kernel, mask, direction, seqlen=1333, num_q_heads=8, head_dim=64, dtype="bf16")
        assert measure_kernel(cell, QUICK, GPU).outcome.status in ("ok", "unsupported", "unavailable")


@pytest.mark.parametrize("kernel", KERNELS)
def test_backward_leaves_no_trace(kernel: str) -> None:
    from tests.helpers.kernels.cases import Case, pattern_mask

    plugin = Registry("kernel").load(kernel)
    case = Case(pattern_mask("causal", 2), 4, 2, head_dim=64)
    reason = plugin.available("cuda") or plugin.supports(
        case.cell(kernel, "bwd", "bf16").call_spec, case.mask.traits, "cuda"
    )
    if reason is not None:
        pytest.skip(reason)
    prepared = plugin.prepare(case.problem("bwd", torch.bfloat16, "cuda"))
    q, k, v, dout = (prepared.to_layout(x) for x in case.inputs(torch.bfloat16, "cuda"))
    forward = prepared.forward(q, k, v)
    first = prepared.backward(forward, dout)
    second = prepared.backward(forward, dout)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-2, atol=1e-2
        )  # atomics may add in another order, never twice
    assert all(x.grad is None for x in (q, k, v, dout))
