"""Learnable sinks in `longca.context_parallel` over gloo: results of every strategy, and the gradient of the
sinks, whose parts add up over ranks."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import Mask
from tests.helpers.cp.public_calls import DOCUMENTS, HEADS, OWN, TOLERANCE, H, T, inputs, refusal
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

EMPTY_ROWS = Mask.from_bands(T, [[0, 40, 0, 40, -np.inf, 0], [60, T, 10, T, -30, 5]])
MASKS = (DOCUMENTS, EMPTY_ROWS)
SINKS = torch.tensor([0.7, -2.0, 3.0, -torch.inf])
STRATEGIES = {2: (*OWN, "usp(heads=2)"), 3: ("ring_p2p", "ulysses"), 4: ("usp(heads=2)",)}


def both_ways(cp: ContextParallel, mask: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Results of the whole sequence, and this rank's part of the gradient of the sinks."""
    q, k, v, dout = map(cp.shard, inputs())
    leaves = [x.requires_grad_() for x in (q, k, v, SINKS.to(dtype, copy=True))]
    out = cp.attention(*leaves[:3], mask=mask, sinks=leaves[3])
    *grads, part = torch.autograd.grad(out, leaves, dout)
    whole = {
        name: cp.unshard(x.detach()) for name, x in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)
    }
    return {**whole, "dsinks": part}


def of_rank(comm: Comm) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for strategy in STRATEGIES[comm.world]:
        cp = context_parallel(MASKS, strategy=strategy, **HEADS)
        facts[strategy] = [both_ways(cp, 0), both_ways(cp, 1)]
        with torch.autocast("cpu", torch.bfloat16):
            facts[f"{strategy} under autocast"] = both_ways(cp, 0)
        cp.close()
    if comm.world == 2:
        cp = context_parallel(MASKS, strategy="usp", **HEADS)
        facts["batch"] = in_a_batch(cp)
        facts["bf16"] = both_ways(cp, 0, torch.bfloat16)["dsinks"]
        q, k, v, _ = map(cp.shard, inputs())
        for name, sinks in {
            "shape": torch.zeros(H - comm.rank),
            "dtype": torch.zeros(H, dtype=torch.int32),
            "list": [0.0] * H,
            "one rank": SINKS if comm.rank else None,
        }.items():
            cp = cp.with_mask(MASKS)
            facts[name] = refusal(lambda cp=cp, sinks=sinks: cp.attention(q, k, v, sinks=sinks))
        cp = context_parallel(MASKS, strategy="ulysses", kernel="sdpa", backward=False, **HEADS)
        facts["kernel"] = refusal(lambda: cp.attention(q, k, v, sinks=SINKS))
        cp.close()
    return facts


def in_a_batch(cp: ContextParallel) -> list[list[torch.Tensor]]:
    """Output and gradient of the sinks: of a batch, and of its sequences one by one."""
    q, k, v, _ = map(cp.shard, inputs())
    results = []
    for is_batch in (True, False):
        leaf = SINKS.clone().requires_grad_()
        if is_batch:
            out = cp.attention(*(torch.stack([x, 2 * x]) for x in (q, k, v)), sinks=leaf)
        else:
            out = torch.stack([cp.attention(n * q, n * k, n * v, sinks=leaf) for n in (1, 2)])
        results.append([out.detach(), torch.autograd.grad(out.sin().sum(), leaf)[0]])
    return results


@cache
def results(world: int) -> list[dict[str, Any]]:
    return on_ranks(of_rank, world)


@pytest.mark.parametrize(
    ("world", "strategy"),
    [
        pytest.param(world, strategy, marks=[pytest.mark.slow] if world == 4 else [])
        for world, strategies in STRATEGIES.items()
        for strategy in strategies
    ],
)
def test_results_are_those_of_one_device_and_parts_add_up(world: int, strategy: str):
    ranks = results(world)
    for number, mask in enumerate(MASKS):
        expected = attention(mask, *inputs(), SINKS)
        parts = torch.stack([rank[strategy][number]["dsinks"] for rank in ranks])
        assert ((parts - expected["dsinks"]).abs().amax(1) > 1e-3).all(), "no rank has the whole"
        for actual in ({**rank[strategy][number], "dsinks": parts.sum(0)} for rank in ranks):
            for name, x in actual.items():
                error = (x.double() - expected[name]).norm() / expected[name].norm()
                assert error < 4 * TOLERANCE, name
        assert not parts[:, -1].any(), "a head without a sink"
    for rank in ranks:
        for name, x in rank[strategy][0].items():
            assert torch.equal(x, rank[f"{strategy} under autocast"][name]), name


def test_a_batch_and_another_dtype():
    for rank in results(2):
        batch, single = rank["batch"]
        torch.testing.assert_close(batch, single, rtol=1e-6, atol=1e-6)
        assert rank["bf16"].dtype == torch.bfloat16
    parts = sum(rank["bf16"].double() for rank in results(2))
    rounded = attention(DOCUMENTS, *inputs(), SINKS.bfloat16())["dsinks"]
    torch.testing.assert_close(parts, rounded, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("shape", r"Rank 1: Argument 'sinks' of attention: sinks must be (4,), a logit for each query head, and it is (3,)"),  # noqa: E501
        ("dtype", "Argument 'sinks' of attention: sinks must be bf16, fp16, float32 or float64, and it is torch.int32"),  # noqa: E501
        ("list", "Argument 'sinks' of attention: sinks must be a tensor, and it is list"),
        ("one rank", "Ranks call forward number 8 with different arguments: rank 0 has no sinks, rank 1 has sinks"),  # noqa: E501
        ("kernel", "Strategy 'ulysses' with kernel 'sdpa' takes no sinks: it returns no LSE"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_and_the_same_on_every_rank(case: str, words: str):
    texts = [rank[case] for rank in results(2)]
    assert words in texts[0] and texts[0] == texts[1] and "\n" not in texts[0]


def test_one_process_alone():
    cp = context_parallel(DOCUMENTS, **HEADS)
    actual = both_ways(cp, 0)
    expected = attention(DOCUMENTS, *inputs(), SINKS)
    for name, x in actual.items():
        torch.testing.assert_close(x.double(), expected[name], rtol=1e-4, atol=1e-5)
    cp.close()
