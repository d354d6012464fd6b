"""Results in a fixed order: the same bits on any number of ranks, under every strategy, and right ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.contract import HeadStrategy
from longca.cp.runtime.fixed_attention import PreparedFixed
from longca.cp.schedule.fixed_plan import fixed_refusal, partition_fixed
from longca.kernels.backends.naive import NaivePrepared
from tests.helpers.cp.case import TENSORS, Case
from tests.helpers.cp.virtual import on_virtual_ranks
from tests.helpers.cp.virtual_memory import on_symmetric_ranks

T = 131
MASKS = ("full", "causal_document", "sliding_window", "shared_question", "global_sliding_window", "causal")
ELSEWHERE = (
    ("ring_p2p", 2),
    ("ring_p2p", 4),
    ("ring_allgather", 3),
    ("usp", 4),
    ("loongtrain", 4),
    ("ulysses", 2),
    ("ulysses", 3),  # the third rank has no heads
    ("ring_allgather", 5),  # ranks have different numbers of parts
)
DTYPES = (torch.float32, torch.bfloat16)


def run(case: Case, comm: Any) -> dict[str, Any]:
    """This rank's part, as `Case.run` has it; LSE with its tokens and heads."""
    problem = case.problem()
    kernel = Registry("kernel").load("naive")
    strategy = Registry("strategy").load(case.strategy).with_params(dict(case.strategy_params))
    assert isinstance(strategy, HeadStrategy)
    call = problem.call_spec
    assert fixed_refusal(strategy, problem.mask, call, comm.world, kernel, "cpu") is None
    work = partition_fixed(strategy.mesh(comm.world, call.num_kv_heads), problem.mask, call)
    prepared = PreparedFixed(problem, kernel, comm, work)
    mine = torch.from_numpy(prepared.shard.positions_L)
    q, k, v, dout = (x[mine] for x in case.inputs())
    forward = prepared.forward(q, k, v)
    prepared.forward(-q, 2 * k, 3 * v)  # what the first one keeps stays as it is
    ring_rank, number = work.mesh.of(comm.rank)
    saved = [forward.saved] if work.mesh.heads == 1 else forward.saved[0]
    tokens = torch.from_numpy(work.plan.sharding.positions(ring_rank))
    lse = [
        (tokens, list(chunk.heads.ranks[number].q), kept[4])
        for chunk, kept in zip(work.chunks, saved, strict=True)
        if kept is not None
    ]
    grads = prepared.backward(forward, dout)
    return {"positions": mine, "lse by heads": lse} | dict(zip(TENSORS, (forward.out, *grads), strict=True))


def whole(case: Case, parts: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    order = torch.cat([part["positions"] for part in parts]).argsort()
    lse = torch.full((case.seqlen, case.num_q_heads), torch.nan)
    for tokens, heads, values in (entry for part in parts for entry in part["lse by heads"]):
        lse[tokens[:, None], torch.tensor(heads)] = values
    return {"lse": lse} | {name: torch.cat([part[name] for part in parts])[order] for name in TENSORS}


@cache
def alone(case: Case) -> dict[str, torch.Tensor]:
    parts = on_virtual_ranks(lambda comm: run(case, comm), 1)
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    return whole(case, parts)


def differing(case: Case, parts: list[dict[str, Any]]) -> list[str]:
    """Names of tensors whose bits are not those of one rank."""
    expected = alone(replace(case, strategy="ring_p2p", strategy_params=()))
    return [name for name, x in whole(case, parts).items() if not torch.equal(x, expected[name])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("strategy", "world"), ELSEWHERE)
@pytest.mark.sample(5)
def test_bits_are_those_of_one_rank(strategy: str, world: int, mask: str, dtype: torch.dtype) -> None:
    case = Case(mask, T, 4, 2, dtype, strategy)
    assert differing(case, on_virtual_ranks(lambda comm: run(case, comm), world)) == []


@pytest.mark.parametrize(("strategy", "world"), [("ring_p2p", 3), ("ulysses", 2), ("usp", 4)])
def test_bits_with_masks_that_differ_by_head(strategy: str, world: int) -> None:
    params = (("block", 16), ("density", 0.4))
    case = Case("block_sparse_uniform", 128, 8, 4, strategy=strategy, params=params)
    assert differing(case, on_virtual_ranks(lambda comm: run(case, comm), world)) == []


@pytest.mark.parametrize(("strategy", "world"), [("ring_p2p", 1), ("ring_p2p", 3), ("usp", 4)])
def test_bits_with_heads_in_chunks(strategy: str, world: int) -> None:
    case = Case("causal", T, 8, 4, strategy=strategy)
    expected = alone(case if strategy == "ring_p2p" else replace(case, strategy="ring_p2p"))
    with patch("longca.cp.runtime.fixed_attention.CALL_S", -1.0):
        parts = on_virtual_ranks(lambda comm: run(case, comm), world)
    assert all(torch.equal(x, expected[name]) for name, x in whole(case, parts).items())


@pytest.mark.parametrize("num_chunks", [1, 2])
@pytest.mark.parametrize(("strategy", "world"), [("ring_allgather", 3), ("usp", 4)])
def test_bits_with_messages_written_into_memory_of_others(strategy: str, world: int, num_chunks: int) -> None:
    case = Case("causal_document", T, 8, 4, torch.bfloat16, strategy)
    alone(replace(case, strategy="ring_p2p"))
    with patch("longca.cp.runtime.fixed_attention.CALL_S", 1.0 if num_chunks == 1 else -1.0):
        parts = on_symmetric_ranks(lambda comm: run(case, comm), world)
    assert differing(case, parts) == []


@pytest.mark.parametrize(("seqlen", "world"), [(5, 9), (24, 12), (1, 2)])
def test_short_sequences_on_many_ranks(seqlen: int, world: int) -> None:
    case = Case("causal", seqlen, 2, 2, strategy="ring_p2p")
    assert differing(case, on_virtual_ranks(lambda comm: run(case, comm), world)) == []


def test_bits_of_the_fast_way_do_depend_on_ranks() -> None:
    """Else equal bits above would show nothing."""
    case = Case("causal", T, 4, 2, strategy="ring_p2p")
    results = []
    for world in (1, 3):
        parts = on_virtual_ranks(case.run, world)
        order = torch.cat([part["positions"] for part in parts]).argsort()
        results.append({name: torch.cat([part[name] for part in parts])[order] for name in TENSORS})
    assert not all(torch.equal(results[0][name], results[1][name]) for name in TENSORS)


def test_kernels_run_in_one_thread() -> None:
    """Matrix products depend on the number of threads, which torchrun sets and a lone process does not."""
    threads = []
    forward = NaivePrepared.forward

    def watched(self: NaivePrepared, *tensors: torch.Tensor) -> Any:
        threads.append(torch.get_num_threads())
        return forward(self, *tensors)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with patch.object(NaivePrepared, "forward", watched):
            on_virtual_ranks(lambda comm: (torch.set_num_threads(2), run(Case("full", 24, 2, 1), comm)), 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}
