"""Activation checkpointing around `cp.attention`: the forward that backward repeats is a call of its own, in
the same order on every rank. Compiled blocks and autocast change nothing."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from longca.core.errors import UserError
from longca.cp.calls.planning import MAX_KEPT
from longca.cp.comm.backend import Comm
from longca.cp.context import ContextParallel, context_parallel
from longca.masks import Mask
from tests.helpers.cp.public_calls import results
from tests.helpers.cp.ranks import on_ranks

T, H, D = 96, 4, 8
HEADS: dict[str, Any] = {"num_q_heads": H, "num_kv_heads": 2, "head_dim": D}
DOCUMENTS = Mask.from_documents([40, 20, 36])
WINDOW = Mask.from_windows(T, (12, 0))
CASES = [(strategy, "fast") for strategy in ("ring_allgather", "ring_p2p", "ulysses", "loongtrain")]
CASES.append(("usp", "fixed"))


def layer(cp: ContextParallel, mask: int, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    q = (x @ weight).unflatten(1, (H, -1))
    k, v = q[:, ::2].tanh(), q[:, 1::2].contiguous()
    return x + cp.attention(q, k, v, mask, tag=mask).tanh().flatten(1)


def layers(cp: ContextParallel, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return layer(cp, 1, layer(cp, 0, x, weight), weight)


def nested(cp: ContextParallel, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return checkpoint(layers, cp, layer(cp, 1, x, weight), weight, use_reentrant=False)


WAYS = {
    "plain": layers,
    "reentrant": partial(checkpoint, layers, use_reentrant=True),
    "non-reentrant": partial(checkpoint, layers, use_reentrant=False),
    "plain, three": lambda cp, x, weight: layers(cp, layer(cp, 1, x, weight), weight),
    "nested": partial(checkpoint, nested, use_reentrant=False),
    "nested, reentrant": partial(checkpoint, nested, use_reentrant=True),
}
LENGTHS = range(40, 64, 4)
PAIRS = (
    ("plain", "reentrant"),
    ("plain", "non-reentrant"),
    ("plain, three", "nested"),
    ("plain, three", "nested, reentrant"),
)


def gradients(
    contexts: list[ContextParallel], way: Any, head_dim: int = D, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of this rank's loss: by its inputs, and by the weight of all layers. Two micro-batches run
    forward, then backward: other calls surround a repeated forward than the first one."""
    whole = torch.randn(T * 64, H * head_dim, generator=torch.Generator().manual_seed(0))
    whole = whole.to(contexts[0].positions.device, dtype)
    weight = (torch.eye(H * head_dim).to(whole) / 2).requires_grad_()
    inputs = [cp.shard(whole[: cp.seqlen]).requires_grad_() for cp in contexts]
    outs = [way(cp, way(cp, x, weight), weight) for cp, x in zip(contexts, inputs, strict=True)]
    for out in outs:
        out.square().sum().backward()
    assert weight.grad is not None
    return torch.cat([x.grad for x in inputs if x.grad is not None]), weight.grad


def all_ways(comm: Comm) -> dict[tuple[str, str], dict[str, Any]]:
    results = {}
    for strategy, reduction in CASES:
        cp = context_parallel([DOCUMENTS, WINDOW], strategy=strategy, reduction=reduction, **HEADS)
        contexts = [cp, cp.with_mask([Mask.from_documents([T]), WINDOW])]
        results[strategy, reduction] = {name: gradients(contexts, way) for name, way in WAYS.items()}
        cp.close()
    return results


@pytest.mark.long
def test_gradients_are_those_without_checkpointing():
    for of_rank in on_ranks(all_ways, 2):
        for case in CASES:
            for name, way in PAIRS:
                (expected, by_weight), (actual, by_weight_too) = of_rank[case][name], of_rank[case][way]
                assert torch.equal(actual, expected) and expected.abs().max() > 1, (case, way)
                # its parts are added in another order
                assert (by_weight_too - by_weight).norm() < 1e-6 * by_weight.norm(), (case, way)


def many_micro_batches(comm: Comm) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By way of checkpointing: gradients by inputs, of micro-batches that run backward at once, and of those
    that do so after all forwards."""
    results = []
    for way in (WAYS["plain"], WAYS["reentrant"], WAYS["non-reentrant"]):
        cp = context_parallel(DOCUMENTS, strategy="ring_p2p", **HEADS)
        contexts = [
            cp.with_mask([Mask.from_documents([20, n]), Mask.from_windows(20 + n, (9, 0))]) for n in LENGTHS
        ]
        at_once = torch.cat([gradients([context], way)[0] for context in contexts])
        results.append((at_once, gradients(contexts, way)[0]))
        cp.close()
    return results


def test_contexts_of_earlier_masks_stay_valid():
    assert len(LENGTHS) > MAX_KEPT
    for of_rank in on_ranks(many_micro_batches, 2):
        for at_once, later in of_rank:
            assert torch.equal(at_once, later)


def one_rank_checkpoints(comm: Comm) -> list[str]:
    texts = []
    for name in ("reentrant", "non-reentrant"):
        cp = context_parallel([DOCUMENTS, WINDOW], strategy="ring_p2p", **HEADS)
        with pytest.raises(UserError) as raised:
            gradients([cp], WAYS[name] if comm.rank else WAYS["plain"])
        texts.append(str(raised.value))
        cp.close()
    return texts


def test_a_repeated_forward_is_not_taken_for_another_call():
    first, second = on_ranks(one_rank_checkpoints, 2)
    assert first == second
    said = "rank 0 calls backward number 1 with gradients of forward number 4, rank 1 calls forward number 5"
    assert all(said in text and "\n" not in text for text in first), first


def transforms_on_one_rank(comm: Comm) -> tuple[list[str], list[bool]]:
    """The messages of each rank, and whether the context can be used afterwards."""
    cp = context_parallel(DOCUMENTS, strategy="ring_p2p", timeout=20, **HEADS)
    q, k, v = (cp.shard(torch.ones(T, heads, D)).requires_grad_() for heads in (H, 2, 2))
    texts = []
    fine = []

    def batched(call: Any) -> Any:
        return torch.vmap(call)(torch.stack([q, q])) if comm.rank else call(q)

    def gradients_of_both() -> Any:
        out = cp.attention(q, k, v)
        dout = torch.ones(2, *out.shape) if comm.rank else torch.ones_like(out)
        return torch.autograd.grad(out, q, dout, is_grads_batched=comm.rank == 1)

    for call in (
        lambda: batched(lambda x: cp.attention(x, k, v)),
        lambda: batched(cp.unshard),
        gradients_of_both,
    ):
        with pytest.raises(UserError) as raised:
            call()
        texts.append(str(raised.value))
        fine.append(bool(torch.isfinite(cp.attention(q, k, v)).all()))
    cp.close()
    return texts, fine


@pytest.mark.long
def test_a_transform_on_one_rank_is_refused_on_all_and_ends_nothing():
    first, second = on_ranks(transforms_on_one_rank, 2)
    assert first == second and all(first[1])
    for text in first[0]:
        assert text.startswith("Rank 1: attention has no rule for the transforms") and "\n" not in text


def test_checkpointing_saves_less_and_changes_nothing():
    for of_rank in results():
        (plain, again), kept, kept_outside = of_rank["checkpoint"]
        assert torch.equal(plain, again)
        assert kept_outside < kept


def test_compiled_blocks_and_autocast_change_nothing():
    for of_rank in results():
        for case in ("compiled", "training step", "float16"):
            assert torch.equal(*of_rank[case])
