"""Strategies whose messages are written straight into a peer's memory: the same results, bit by bit, as where
a library brings them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from tests.helpers.cp.case import TENSORS, Case
from tests.helpers.cp.virtual import on_virtual_ranks
from tests.helpers.cp.virtual_memory import SymmetricVirtualComm, on_symmetric_ranks

STRATEGIES = ("ring_p2p", "ring_allgather", "ulysses", "usp", "loongtrain")
MASKS = ("full", "causal_document", "sliding_window", "shared_question")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.sample(7, 4)  # Ulysses in chunks of heads is one of these
def test_results_are_the_same_to_the_last_bit(strategy: str, world: int, mask: str) -> None:
    weights = (1, 2, 1) if mask == "full" and strategy == "ulysses" and world == 2 else None
    case = Case(mask, 97, 8, 4, torch.bfloat16, strategy, weights=weights)
    expected = on_virtual_ranks(case.run, world, keeps_order=True)
    actual = on_symmetric_ranks(case.run, world)
    for rank, (there, here) in enumerate(zip(expected, actual, strict=True)):
        assert here["moved"] == there["moved"]
        assert here["repeatable"]
        for name in TENSORS:
            assert torch.equal(there[name], here[name]), (case, rank, name)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_older_forward_result_is_still_good_for_its_backward(strategy: str) -> None:
    """Places are written to again by the next call: what a forward keeps must not lie in them."""
    case = Case("causal", 64, 8, 4, strategy=strategy)

    def run(comm: Any) -> list[torch.Tensor]:
        prepared = (
            Registry("strategy")
            .load(case.strategy)
            .prepare(case.problem(), Registry("kernel").load("naive"), comm)
        )
        mine = torch.from_numpy(prepared.shard.positions_L)
        q, k, v, dout = (x[mine] for x in case.inputs())
        first = prepared.forward(q, k, v)
        if isinstance(comm, SymmetricVirtualComm):
            prepared.forward(-q, 2 * k, 3 * v)
        return [first.out, *prepared.backward(first, dout)]

    for there, here in zip(
        on_virtual_ranks(run, 4, keeps_order=True), on_symmetric_ranks(run, 4), strict=True
    ):
        assert all(torch.equal(x, y) for x, y in zip(there, here, strict=True))


def test_two_prepared_strategies_do_not_share_places() -> None:
    cases = [Case("causal", 96, 4, 2), Case("full", 64, 4, 4, strategy="ring_p2p")]

    def run(comm: Any) -> list[torch.Tensor]:
        calls = []
        for case in cases:
            prepared = (
                Registry("strategy")
                .load(case.strategy)
                .prepare(case.problem(), Registry("kernel").load("naive"), comm)
            )
            mine = torch.from_numpy(prepared.shard.positions_L)
            calls.append((prepared, [x[mine] for x in case.inputs()]))
        forwards = [prepared.forward(*tensors[:3]) for prepared, tensors in calls]
        return [
            x
            for (prepared, tensors), forward in zip(calls, forwards, strict=True)
            for x in (forward.out, *prepared.backward(forward, tensors[3]))
        ]

    for there, here in zip(
        on_virtual_ranks(run, 3, keeps_order=True), on_symmetric_ranks(run, 3), strict=True
    ):
        assert all(torch.equal(x, y) for x, y in zip(there, here, strict=True))
