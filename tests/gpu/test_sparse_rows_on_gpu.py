"""Block-sparse rows over the sizes of blocks and heads that the common tests leave out."""

import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.studies.grid import Measure
from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask
from tests.helpers.bench.cells import small_cell
from tests.helpers.gpu.device import GPU, needs_gpu
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention

pytestmark = needs_gpu
ROWS = [name for name in Registry("kernel").names() if Registry("kernel").load(name).family == "sparse"]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("block", [48, 128, 256])
@pytest.mark.parametrize("kernel", ROWS)
def test_other_blocks(kernel: str, block: int, head_dim: int) -> None:
    params = Registry("mask").load("block_sparse_uniform").resolve({"block": block, "density": 0.3})
    for direction in ("fwd", "bwd"):
        for heads in ((16, 2), (4, 4)):
            cell = small_cell(
                kernel,
                "block_sparse_uniform",
                direction,
                mask_params=params,
                seqlen=3072,
                dtype="bf16",
                num_q_heads=heads[0],
                num_kv_heads=heads[1],
                head_dim=head_dim,
            )
            outcome = measure_kernel(cell, Measure.fixed(warmup=1, repeats=3), GPU).outcome
            assert outcome.status in ("ok", "unsupported", "unavailable"), outcome


@pytest.mark.parametrize("num_q_heads", [8, 2])
@pytest.mark.parametrize("seqlen", [133, 192])
@pytest.mark.parametrize("kernel", ROWS)
def test_rows_without_keys_and_shorter_last_blocks(kernel: str, seqlen: int, num_q_heads: int) -> None:
    visible = np.array([[[1, 0, 1], [0, 0, 0], [1, 0, 1]], [[0, 1, 1], [1, 1, 0], [0, 0, 1]]], dtype=bool)
    bounds = np.tile([0, 64, 128, seqlen], (2, 1))
    case = Case(Mask(seqlen, seqlen, grid=BlockGrid(visible, bounds, bounds)), num_q_heads, 2, head_dim=128)
    plugin = Registry("kernel").load(kernel)
    inputs = case.inputs(torch.bfloat16, "cuda")
    right = plain_attention(*inputs, case.mask.dense())
    for direction in ("fwd", "bwd"):
        reason = plugin.available("cuda") or plugin.supports(
            case.cell(kernel, direction, "bf16").call_spec, case.mask.traits, "cuda"
        )
        if reason is not None:
            pytest.skip(reason)
        prepared = plugin.prepare(case.problem(direction, torch.bfloat16, "cuda"))
        q, k, v, dout = (prepared.to_layout(x) for x in inputs)
        forward = prepared.forward(q, k, v)
        actual = [prepared.from_layout(forward.out), prepared.lse_from_layout(forward.lse)]
        wanted = [right.out, right.lse]
        if direction == "bwd":
            actual += [prepared.from_layout(grad) for grad in prepared.backward(forward, dout)]
            wanted += right.grads
        for first, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(first.cpu().double(), other, rtol=3e-2, atol=3e-2)
