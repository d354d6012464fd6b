"""`longca.context_parallel` over gloo: what two ranks are asked, once for tests of several modules."""

from contextlib import nullcontext
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import Mask, build_mask
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.reference import attention

T = 97
H = 4
G = 2
D = 8
HEADS: dict[str, Any] = {"num_q_heads": H, "num_kv_heads": G, "head_dim": D}
DOCUMENTS = build_mask("causal_document", seqlen=T, documents=np.array([40, 7, 30, 20]))
WINDOW = build_mask("causal_sliding_window", seqlen=T, window=16)
CAUSAL = build_mask("causal", seqlen=T)
OWN = ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain")
TOLERANCE = 16 * torch.finfo(torch.float32).eps


def inputs() -> tuple[torch.Tensor, ...]:
    """q, k, v and dout of the whole sequence, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(T, heads, D, generator=generator) for heads in (H, G, G, H))


def both_ways(cp: ContextParallel, mask: int | Mask = 0) -> dict[str, torch.Tensor]:
    """The output and gradients of the whole sequence."""
    q, k, v, dout = map(cp.shard, inputs())
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = cp.attention(*leaves, mask=mask)
    grads = torch.autograd.grad(out, leaves, dout)
    return {
        name: cp.unshard(x.detach()) for name, x in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)
    }


def error(results: dict[str, torch.Tensor], mask: Mask) -> float:
    expected = attention(mask, *inputs())
    return max(
        float((x.double() - expected[name]).norm() / expected[name].norm()) for name, x in results.items()
    )


def refusal(call: Any) -> str:
    try:
        call()
    except UserError as refused:
        return str(refused)
    return "not refused"


def two_ranks(comm: Comm) -> dict[str, Any]:
    """All that two ranks are asked: to start them takes longer than to ask."""
    facts: dict[str, Any] = {}
    for strategy in (*OWN, "usp(heads=2)"):
        cp = context_parallel([DOCUMENTS, WINDOW], strategy=strategy, **HEADS)
        facts[strategy] = [both_ways(cp, 0), both_ways(cp, WINDOW)]
        facts[f"{strategy} is"] = cp.strategy
        cp.close()
        cp = context_parallel([DOCUMENTS, WINDOW], strategy=strategy, **HEADS)
        facts[f"{strategy} again"] = both_ways(cp, 0)
        with torch.autocast("cpu", torch.bfloat16):
            facts[f"{strategy} under autocast"] = both_ways(cp, 0)
        cp.close()
    cp = context_parallel(DOCUMENTS, timeout=20, **HEADS)
    facts["auto"] = {
        "strategy": cp.strategy,
        "estimated": cp.estimated_ms,
        "repr": repr(cp),
        "costs": cp.costs,
        "notes": cp.notes,
        "tokens": (cp.num_tokens, cp.seqlen, len(cp.positions)),
        "restored": cp.unshard(cp.shard(torch.arange(T))),
    }
    facts["batch"] = in_a_batch(cp)
    facts["of the whole"] = gradient_of_the_whole(cp)
    facts["checkpoint"], facts["compiled"] = checkpointed(cp), compiled(cp)
    facts["training step"], facts["float16"] = compiled_step(cp), a_batch_under_autocast()
    cp.plan_ahead(CAUSAL)
    ahead = cp.with_mask(CAUSAL)
    facts["ahead"] = {"results": both_ways(ahead), "costs": ahead.costs, "again": cp.with_mask(CAUSAL).costs}
    facts["refusals"] = refusals(cp, comm.rank)
    facts["failure"] = a_failure_of_one_rank(cp)
    facts["after it"] = both_ways(cp)
    cp.close()
    facts["group is left"] = dist.is_initialized()
    return facts


def in_a_batch(cp: ContextParallel) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, _ = map(cp.shard, inputs())
    pair = cp.attention(*(torch.stack([x, 2 * x]) for x in (q, k, v)))
    return pair, torch.stack([cp.attention(q, k, v), cp.attention(2 * q, 2 * k, 2 * v)])


def gradient_of_the_whole(cp: ContextParallel) -> tuple[torch.Tensor, torch.Tensor]:
    """All ranks compute one loss from unsharded tensors: this rank's part of the gradient, and the expected
    one."""
    whole = inputs()[0]
    mine = cp.shard(whole).requires_grad_()
    cp.unshard(mine.transpose(0, 1), dim=1).square().sum().backward()
    return mine.grad, 2 * cp.shard(whole)


def block(cp: ContextParallel, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    q = (x @ weight).unflatten(1, (H, D))
    k = q[:, ::2].contiguous()
    return x + torch.tanh(cp.attention(q, k, k)).flatten(1)


def checkpointed(cp: ContextParallel) -> tuple[list[torch.Tensor], int, int]:
    """Gradients with and without activation checkpointing, and the tensors that autograd keeps for attention
    in each."""
    x = cp.shard(inputs()[0]).flatten(1)
    weight = torch.eye(H * D) * 0.5
    saved = []
    grads = []
    for wrapped in (False, True):
        leaf = weight.clone().requires_grad_()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda y, kept=kept: kept.append(y) or y, lambda y: y):
            out = checkpoint(block, cp, x, leaf, use_reentrant=False) if wrapped else block(cp, x, leaf)
        grads.append(torch.autograd.grad(out.square().sum(), leaf)[0])
        saved.append(len(kept))
    return grads, *saved


def compiled(cp: ContextParallel) -> tuple[torch.Tensor, torch.Tensor]:
    x = cp.shard(inputs()[0]).flatten(1)
    weight = torch.eye(H * D) * 0.5
    maybe = torch.compile(block, backend="eager") if cp.rank == 0 else block  # on one rank: it takes a second
    return maybe(cp, x, weight), block(cp, x, weight)


def compiled_step(cp: ContextParallel) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of a step that changes its mask, has its backward inside and uses the whole; compiled on one
    rank, and not."""

    def step(x: torch.Tensor, weight: torch.Tensor) -> None:
        other = cp.with_mask(Mask.from_documents([60, 37]))
        other.unshard(block(other, other.shard(x), weight)).square().sum().backward()

    x = inputs()[0].flatten(1)
    weights = [torch.eye(H * D).requires_grad_() for _ in range(2)]
    for each, weight in zip(
        (torch.compile(step, backend="eager") if cp.rank == 0 else step, step), weights, strict=True
    ):
        each(x, weight)
    return weights[0].grad, weights[1].grad


def a_batch_under_autocast() -> list[torch.Tensor]:
    """Out and gradients of a batch of another dtype than autocast's, and without it."""
    cp = context_parallel(DOCUMENTS, dtype=torch.float16, **HEADS)
    leaves = [torch.stack([x, -x]).half().requires_grad_() for x in map(cp.shard, inputs()[:3])]
    results = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = cp.attention(*leaves)
            grads = torch.autograd.grad(out.sum(), leaves)
        results.append(torch.cat([x.flatten() for x in (out.detach(), *grads)]))
    cp.close()
    return results


def a_failure_of_one_rank(cp: ContextParallel) -> str:
    """The error on this rank where rank 1 has no memory for its kernels."""
    naive = type(Registry("kernel").load("naive"))
    failing = patch.object(naive, "prepare", side_effect=MemoryError("no room")) if cp.rank else nullcontext()
    with failing, pytest.raises((MemoryError, RuntimeError)) as raised:
        cp.with_mask(build_mask("full", seqlen=T))
    return f"{raised.type.__name__}: {raised.value}"


def refusals(cp: ContextParallel, rank: int) -> dict[str, str]:
    q, k, v, _ = map(cp.shard, inputs())
    different = build_mask("causal_document", seqlen=T, documents=np.array([T - 10 - rank, 10 + rank]))

    def plan(**changes: Any) -> str:
        return refusal(lambda: context_parallel(**{"mask": DOCUMENTS, **HEADS, **changes}))

    def first(mask: Mask, *tensors: Any) -> str:
        fresh = cp.with_mask(mask)
        return refusal(lambda: fresh.attention(*tensors))

    return {
        "masks differ": plan(mask=different),
        "next masks differ": refusal(lambda: cp.with_mask(different)),
        "heads differ": plan(num_q_heads=4 + 4 * rank),
        "strategy differs": plan(strategy=("usp", {"heads": 1 + rank})),
        "no mask": plan(mask="causal"),
        "two lengths": plan(mask=[CAUSAL, build_mask("causal", seqlen=64)]),
        "not square": plan(mask=CAUSAL.crop((0, 50), (0, T))),
        "one rank alone": plan(head_dim=0 if rank else D),
        "uneven heads": plan(num_kv_heads=3),
        "dtype": plan(dtype=torch.int64),
        "strategy": plan(strategy="usq"),
        "parameter": plan(strategy="usp(head=2)"),
        "does not fit": plan(strategy="usp(heads=3)"),
        "baseline": plan(strategy="yunchang"),
        "kernel": plan(kernel="band"),
        "two kernels": plan(strategy="usp[heads=1]+band", kernel="naive"),
        "kernel of a way": plan(strategy="usp+band"),
        "group": plan(group=3),
        "timeout": plan(timeout=0),
        "messages": plan(messages="mpi"),
        "check": plan(check="never"),
        "backward": plan(backward="no"),
        "warm": plan(warm="no"),
        "whole": refusal(lambda: cp.shard(torch.zeros(5))),
        "unshard": refusal(lambda: cp.unshard(torch.zeros(5))),
        "uneven shards": first(WINDOW, *(x[: len(x) - rank] for x in (q, k, v))),
        "all tokens": first(CAUSAL, *inputs()[:3]),
        "other heads": first(CAUSAL, q, v, k[:, :1]),
        "no tokens": refusal(lambda: cp.shard([3])),
        "no dimension": refusal(lambda: cp.unshard(q, dim=None)),
        "broken strategy": plan(strategy="usp(heads=[)"),
        "no device": plan(device="foo"),
        "timeout in words": plan(timeout="long"),
        "other dtype": first(CAUSAL, q.double(), k, v),
        "dtype to plan for": first(CAUSAL, q.half(), k, v),
        "integers": first(CAUSAL, q.int(), k, v),
        "no tensor": first(CAUSAL, q, k, None),
        "no tensor at all": first(CAUSAL, None, k, v),
        "device": first(CAUSAL, q, k, v.to("meta")),
        "another mask": refusal(lambda: cp.attention(q, k, v, mask=3)),
    }


@cache
def results() -> list[dict[str, Any]]:
    return on_ranks(two_ranks, 2)
