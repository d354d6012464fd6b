"""Calls without gradients: contexts made in inference mode serve to train, and a prompt is prefilled in
chunks."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from longca.core.plugin import Registry
from longca.cp.calls.planning import MaskPlanner
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.kernels import Problem
from longca.masks import Mask, build_mask
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

T, H, G, D = 97, 4, 2, 8
HEADS = {"num_q_heads": H, "num_kv_heads": G, "head_dim": D}
DOCUMENTS = Mask.from_documents([40, 7, 30, 20])
CAUSAL = Mask.from_documents([T])
STRATEGIES = ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain")
CHUNKS = ((0, 13), (13, 14), (14, 60), (60, T))


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(T, heads, D, generator=generator).to(dtype) for heads in (H, G, G)]


def by_all_ranks_together(planner: MaskPlanner, masks: Any) -> Any:
    """A plan that the thread of the caller prepares, as with symmetric messages."""
    return planner._choose([planner._request.problem(mask) for mask in masks])


def trained_after_inference(comm: Comm) -> list[torch.Tensor]:
    """The gradients of an embedding and of q."""
    results = []
    with patch.object(MaskPlanner, "_plan", by_all_ranks_together), torch.inference_mode():
        cp = context_parallel(DOCUMENTS, strategy="ring_p2p", **HEADS)
        cp.unshard(cp.attention(*map(cp.shard, inputs())))
        other = cp.with_mask(CAUSAL)
        other.attention(*map(other.shard, inputs()))
    for each in (cp, other):
        embedding = nn.Embedding(T, H * D)
        with torch.no_grad():
            embedding.weight.copy_(inputs()[0].flatten(1))
        q, (_, k, v) = embedding(each.positions).unflatten(1, (H, D)), map(each.shard, inputs())
        each.unshard(each.attention(q, k, v)).sum().backward()
        parameter = nn.Parameter(torch.ones(T))
        each.shard(parameter).sum().backward()
        assert embedding.weight.grad is not None and parameter.grad is not None
        results += [embedding.weight.grad, parameter.grad]
    cp.close()
    return results


def test_a_context_of_inference_mode_serves_to_train():
    of_ranks = on_ranks(trained_after_inference, 2)
    totals = [torch.stack(parts).sum(0) for parts in zip(*of_ranks, strict=True)]
    for mask, by_q, by_token in zip((DOCUMENTS, CAUSAL), totals[::2], totals[1::2], strict=True):
        expected = attention(mask, *inputs(), torch.ones(T, H, D))["dq"].flatten(1)
        torch.testing.assert_close(by_q.double(), expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(by_token, torch.ones(T))


@torch.inference_mode()
def in_chunks(cp: ContextParallel) -> torch.Tensor:
    """The output of a prompt that arrives in chunks. Keys that have not arrived are NaN."""
    q, k, v = (cp.shard(x) for x in inputs(torch.bfloat16))
    keys, values, out = (torch.full_like(x, torch.nan) for x in (k, v, q))
    for chunk, (start, end) in enumerate(CHUNKS):
        rows = (cp.positions >= start) & (cp.positions < end)
        keys[rows], values[rows] = k[rows], v[rows]
        result = cp.attention(q, keys, values, chunk)
        assert not result[~rows].any(), "other rows see nothing"
        out[rows] = result[rows]
    return cp.unshard(out)


def prefilled(comm: Comm) -> dict[str, torch.Tensor]:
    masks = [CAUSAL.cut(chunk, (0, T)) for chunk in CHUNKS]
    results = {}
    for strategy in STRATEGIES:
        for backward in (False, True):
            cp = context_parallel(masks, strategy=strategy, backward=backward, dtype=torch.bfloat16, **HEADS)
            results[f"{strategy}, {backward}"] = in_chunks(cp)
            cp.close()
    return results


@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_prompt_in_chunks_has_the_output_of_the_whole(world: int):
    expected = attention(CAUSAL, *inputs(torch.bfloat16), torch.ones(T, H, D))["out"]
    for results in on_ranks(prefilled, world):
        for case, actual in results.items():
            error = (actual.double() - expected).norm() / expected.norm()
            assert error < 2 * torch.finfo(torch.bfloat16).eps, case


@pytest.mark.parametrize("strategy", ["ring_allgather", "ring_p2p"])
def test_the_shared_sharding_gives_each_rank_a_share_of_every_chunk(strategy: str):
    seqlen, chunk, world = 1 << 16, 1 << 13, 4
    causal = build_mask("causal", seqlen=seqlen)
    kernel = Registry("kernel").load("band")
    device = torch.device("cpu")
    for of_plan in (0, 7):  # whichever chunk's best sharding is chosen for all
        problems = [
            Problem(mask, 64, 8, 128, torch.bfloat16, device, False, records_costs=False)
            for mask in (causal.cut((start, start + chunk), (0, seqlen)) for start in range(0, seqlen, chunk))
        ]
        loaded = Registry("strategy").load(strategy)
        work = loaded.partition_work(problems[of_plan], kernel, world)
        shares = [work.mesh.positions(work.plan.sharding, rank) for rank in range(world)]
        for start in range(0, seqlen, chunk):
            own = [np.count_nonzero((share >= start) & (share < start + chunk)) for share in shares]
            assert own == [chunk / world] * world
