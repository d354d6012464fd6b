"""`longca.context_parallel` over gloo: results and gradients, masks that share a sharding, planning ahead,
and what it refuses."""

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
from longca.cp.context import ContextParallel, PeerLost, context_parallel
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
        "group": plan(group=3),
        "timeout": plan(timeout=0),
        "messages": plan(messages="mpi"),
        "check": plan(check="never"),
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


@pytest.mark.parametrize("strategy", [*OWN, "usp(heads=2)"])
def test_results_are_those_of_one_device_with_masks_that_share_a_sharding(strategy: str):
    for of_rank in results():
        assert error(of_rank[strategy][0], DOCUMENTS) < TOLERANCE
        assert error(of_rank[strategy][1], WINDOW) < TOLERANCE
        assert of_rank[f"{strategy} is"] == strategy


@pytest.mark.parametrize("strategy", OWN)
def test_the_same_inputs_give_the_same_bits(strategy: str):
    for of_rank in results():
        for other in ("again", "under autocast"):
            assert all(
                torch.equal(x, of_rank[f"{strategy} {other}"][name])
                for name, x in of_rank[strategy][0].items()
            )


def test_auto_takes_what_the_cost_model_says_is_quickest_and_says_so():
    for rank, of_rank in enumerate(results()):
        actual = of_rank["auto"]
        assert actual["estimated"].keys() == set(OWN)
        assert actual["strategy"] == min(actual["estimated"], key=actual["estimated"].get)
        assert f"rank {rank} of 2: {actual['strategy']}, chosen by cost over naive" in actual["repr"]
        assert actual["tokens"][1:] == (T, actual["tokens"][0])
        assert torch.equal(actual["restored"], torch.arange(T))
        assert actual["costs"]["waited_ms"] >= actual["costs"]["plan_ms"] > 0


def test_sequences_of_a_batch_and_gradients_of_the_whole():
    for of_rank in results():
        assert torch.equal(*of_rank["batch"])
        assert torch.equal(*of_rank["of the whole"])


def test_checkpointing_saves_less_and_changes_nothing():
    for of_rank in results():
        (plain, again), kept, kept_outside = of_rank["checkpoint"]
        assert torch.equal(plain, again)
        assert kept_outside < kept


def test_compiled_blocks_and_autocast_change_nothing():
    for of_rank in results():
        for case in ("compiled", "training step", "float16"):
            assert torch.equal(*of_rank[case])


def test_a_mask_that_was_planned_ahead_is_right_and_kept():
    for of_rank in results():
        ahead = of_rank["ahead"]
        assert error(ahead["results"], CAUSAL) < TOLERANCE
        assert ahead["again"]["plan_ms"] == ahead["costs"]["plan_ms"], "planned once"
        assert ahead["again"]["waited_ms"] < ahead["costs"]["plan_ms"]
        assert of_rank["group is left"]


def test_where_one_rank_fails_all_raise_and_go_on():
    texts = [of_rank["failure"] for of_rank in results()]
    assert texts == ["RuntimeError: rank 1 failed: MemoryError: no room", "MemoryError: no room"]
    assert all(error(of_rank["after it"], DOCUMENTS) < TOLERANCE for of_rank in results())


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("masks differ", "Argument 'mask' differs between ranks: rank 0 has causal_document of 97 tokens"),
        ("next masks differ", "give the same seed"),
        ("heads differ", "Argument 'num_q_heads' differs between ranks: rank 0 has 4, rank 1 has 8"),
        ("strategy differs", "rank 0 has usp(heads=1), rank 1 has usp(heads=2)"),
        ("no mask", "Argument 'mask' is of type str. Give a longca.Mask"),
        ("two lengths", "masks of 97 and 64 tokens"),
        ("not square", "50 queries and 97 keys"),
        ("one rank alone", "Rank 1: Argument 'head_dim' is 0. Give a whole number"),
        ("uneven heads", "cannot be shared evenly"),
        ("dtype", "Argument 'dtype' is torch.int64. Give torch.bfloat16"),
        ("strategy", "did you mean 'usp'"),
        ("parameter", "did you mean"),
        (
            "does not fit",
            "Strategy 'usp(heads=3)' with kernel 'naive' cannot do this mask on 2 ranks: 2 ranks are no "
            "whole number",
        ),
        ("baseline", "a peer that studies compare with"),
        ("kernel", "Kernel 'band' is unavailable here"),
        ("group", "Argument 'group' is of type int"),
        ("timeout", "Argument 'timeout' is 0"),
        ("messages", "Argument 'messages' is 'mpi'"),
        ("check", "Give 'first' or 'always'"),
        ("whole", "must have the 97 tokens of the mask"),
        ("unshard", "Give what came from cp.shard"),
        ("uneven shards", "Rank 1: Argument 'q' of attention is of shape 4"),
        ("all tokens", "has all 97 tokens"),
        ("other heads", "tokens of this rank × heads × head dim are"),
        ("no tokens", "Argument 'x' of shard is of type list. Give a tensor"),
        ("no dimension", "Argument 'dim' of unshard is None"),
        ("broken strategy", "'usp(heads=[)': a value in it cannot be read"),
        ("no device", "Argument 'device' is 'foo': torch knows no such"),
        ("timeout in words", "Argument 'timeout' is 'long'. Give seconds"),
        (
            "other dtype",
            "Argument 'q' of attention is torch.float64: the plan is for torch.float32. Convert it with "
            ".to(torch.float32)",
        ),
        (
            "dtype to plan for",
            "Convert it with .to(torch.float32), or give dtype=torch.float16 to context_parallel",
        ),
        (
            "integers",
            "Argument 'q' of attention is torch.int32: the plan is for torch.float32. Convert it with "
            ".to(torch.float32)",
        ),
        ("no tensor", "Argument 'v' of attention is of type NoneType"),
        ("no tensor at all", "Argument 'q' of attention is of type NoneType"),
        ("device", "is on meta: this rank is on cpu"),
        ("another mask", "this context has"),
    ],
)
def test_refusals_are_one_line_and_the_same_on_every_rank(case: str, words: str):
    first, second = (of_rank["refusals"][case] for of_rank in results())
    assert words in first
    assert "\n" not in first
    assert first.partition(": this rank")[0].replace("49", "48") == second.partition(": this rank")[
        0
    ].replace("49", "48")


def groups_of_a_mesh(comm: Comm) -> dict[str, Any]:
    """Two groups of two ranks that do different masks at once; and a rank that goes away."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    mask = (DOCUMENTS, CAUSAL)[comm.rank // 2]
    cp = context_parallel(mask, mesh["cp"], "ring_p2p", timeout=1.0, **HEADS)
    facts: dict[str, Any] = {
        "error": error(both_ways(cp), mask),
        "ranks": (cp.rank, cp.world),
        "square": refusal(lambda: context_parallel(mask, mesh, **HEADS)),
    }
    apart = dist.new_group([0, 3])
    facts["outside"] = refusal(lambda: context_parallel(mask, apart, **HEADS)) if comm.rank in (1, 2) else ""
    q, k, v, _ = map(cp.shard, inputs())
    facts["lost"] = comm.rank % 2 == 0
    if comm.rank % 2:
        with pytest.raises(PeerLost):
            cp.attention(q, k, v)
        facts["lost"] = True
    comm.barrier()
    return facts


def test_groups_of_a_device_mesh_and_a_lost_peer():
    for rank, actual in enumerate(on_ranks(groups_of_a_mesh, 4)):
        assert actual["error"] < TOLERANCE
        assert actual["ranks"] == (rank % 2, 2)
        assert "Give one dimension, as mesh['cp']" in actual["square"]
        assert "not in the group" in actual["outside"] or rank in (0, 3)
        assert actual["lost"]
