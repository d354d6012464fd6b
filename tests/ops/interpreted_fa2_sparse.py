"""The operator under Triton's interpreter, on a CPU. Run in a process of its own: Triton reads the switch at
import."""

import sys
from dataclasses import replace

import numpy as np
import torch

from longca.kernels.block_tables import block_tables
from longca.masks import build_mask
from longca.masks.grid import BlockGrid
from longca.masks.mask import Mask
from longca.ops.fa2_sparse import sparse_backward, sparse_forward
from longca.ops.tuning import Tuning, sparse_tuning
from tests.helpers.kernels.cases import Case
from tests.helpers.kernels.plain_attention import plain_attention


def ragged(block: tuple[int, int]) -> Mask:
    """Blocks that do not fill the lengths, one q-block and one k-block in the dark."""
    visible = np.array([[[1, 0, 1], [0, 0, 0], [1, 0, 1]], [[0, 1, 1], [1, 1, 0], [0, 0, 1]]], dtype=bool)
    bounds = [np.tile([0, size, 2 * size, 2 * size + 5], (2, 1)) for size in block]
    return Mask(2 * block[0] + 5, 2 * block[1] + 5, grid=BlockGrid(visible, *bounds))


def check(mask: Mask, num_q_heads: int, num_kv_heads: int) -> None:
    case = Case(mask, num_q_heads, num_kv_heads, head_dim=16)
    q, k, v, dout = case.inputs()
    right = plain_attention(q, k, v, dout, mask.dense())
    tables = block_tables(mask, torch.device("cpu"))
    of_queries = (tables.q_to_k, tables.q_to_k_counts)
    of_keys = (tables.k_to_q, tables.k_to_q_counts)
    blocks = (tables.block_q, tables.block_k)
    scale = 16**-0.5
    tuning = sparse_tuning(16, blocks)
    for by_tma in (True, False):
        tuning = Tuning(
            *(replace(tiling, by_tma=by_tma) for tiling in (tuning.forward, tuning.keys, tuning.queries))
        )
        out, lse = sparse_forward(q, k, v, *of_queries, blocks, scale, tuning.forward)
        near(out, right.out)
        near(lse.T, right.lse)
        grads = sparse_backward(q, k, v, out, lse, dout, of_queries, of_keys, blocks, scale, tuning)
        for actual, wanted in zip(grads, right.grads, strict=True):
            near(actual, wanted)


def near(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    check(build_mask("block_sparse_uniform", seqlen=384, seed=1, num_kv_heads=2, block=128), 4, 2)
    check(build_mask("block_sparse_uniform", seqlen=144, seed=1, num_kv_heads=3, block=48), 3, 3)
    check(ragged((32, 64)), 8, 4)
    sys.stdout.write("right")
