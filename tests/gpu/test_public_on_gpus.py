"""`longca.context_parallel` over NCCL on two GPUs: results, masks that share a sharding, planning ahead, and
training."""

from typing import Any

import pytest
import torch

from examples.train_packed import Options, train
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import Mask, build_mask
from tests.helpers.cp.case import TENSORS, Case
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

OWN = ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain")
CASE = Case("causal_document", 4093, 8, 2, torch.bfloat16, head_dim=128)
WINDOW, CAUSAL = (
    build_mask(name, seqlen=4093, **params)
    for name, params in (("causal_sliding_window", {"window": 512}), ("causal", {}))
)
TRAINED = Options(
    mask="alternating", tokens=4096, steps=20, num_q_heads=4, num_kv_heads=2, head_dim=128, dtype="bfloat16"
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here"),
]


def both_ways(cp: ContextParallel, mask: int = 0) -> dict[str, torch.Tensor]:
    q, k, v, dout = (cp.shard(x.to(cp.positions.device)) for x in CASE.inputs())
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = cp.attention(q, k, v, mask=mask)
    results = zip(TENSORS, (out.detach(), *torch.autograd.grad(out, leaves, dout)), strict=True)
    return {name: cp.unshard(x).cpu() for name, x in results}


def all_strategies(comm: Comm) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for messages in ("nccl", "symmetric"):
        for strategy in OWN:
            cp = context_parallel(
                [CASE.problem().mask, WINDOW],
                strategy=strategy,
                num_q_heads=8,
                num_kv_heads=2,
                head_dim=128,
                messages=messages,
            )
            cp.plan_ahead(CAUSAL)
            facts[f"{strategy}, {messages}"] = [
                both_ways(cp),
                both_ways(cp, 1),
                both_ways(cp.with_mask(CAUSAL)),
            ]
            facts[f"{strategy}, {messages}, is"] = repr(cp)
            cp.close()
    return facts | {"losses": train(TRAINED)["losses"]}


def error(results: dict[str, torch.Tensor], mask: Mask) -> float:
    expected = attention(mask, *(x.cuda() for x in CASE.inputs()))
    return max(
        float((results[name].double() - expected[name].cpu()).norm() / expected[name].norm())
        for name in TENSORS
    )


def test_results_are_those_of_one_device_and_training_learns():
    first, second = on_ranks(all_strategies, 2, timeout_s=300.0, device_type="cuda")
    for name, actual in first.items():
        if isinstance(actual, list) and isinstance(actual[0], dict):
            for results, mask in zip(actual, (CASE.problem().mask, WINDOW, CAUSAL), strict=True):
                assert error(results, mask) < CASE.tolerance, name
            assert "over band" in first[f"{name}, is"]
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < first["losses"][0]
