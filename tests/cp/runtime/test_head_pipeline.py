"""Attention with split heads, in chunks: results, bytes and memory are those of one chunk."""

from functools import cache
from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from tests.helpers.cp.case import Case
from tests.helpers.cp.peak import Peak
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.virtual import on_virtual_ranks

BLOCKS = (("block", 16), ("density", 0.4))
WEIGHTS = ((1, 1), (1, 2, 1), (1, 1, 1, 1))


def cases(world: int) -> list[Case]:
    """Forced chunks: MHA, GQA, one KV head on several ranks, uneven heads, a mask for each KV head or each
    pair of them."""
    heads = [(8, 8), (16, 4), (8, 1), (world + 1, world + 1), (4 * (2 * world + 1), 2 * world + 1)]
    actual = [
        Case(
            "causal_document",
            61 + world,
            *some,
            torch.float32 if number % 2 else torch.bfloat16,
            strategy,
            weights=weights,
        )
        for number, some in enumerate(heads)
        for strategy, weights in zip(("ulysses", "usp", "ulysses"), WEIGHTS, strict=True)
    ]
    return actual + [
        Case("block_sparse_uniform", 128, *some, strategy=strategy, params=BLOCKS, weights=weights)
        for strategy in ("ulysses", "usp")
        for some, weights in (((16, 8), (1, 2, 1)), ((8, 8), (1, 1)))
    ]


def run_all(comm: Comm, some: list[Case]) -> list[dict[str, Any]]:
    return [case.run(comm) for case in some]


@cache
def results(world: int, step: int) -> dict[Case, tuple[dict[str, Any], ...]]:
    some = cases(world)[::step]
    return dict(zip(some, zip(*on_ranks(run_all, world, some), strict=True), strict=True))


@pytest.mark.parametrize(
    ("world", "step", "case"),
    [
        *((world, step, case) for world, step in ((2, 5), (3, 5), (4, 2)) for case in cases(world)[::step]),
        *(
            pytest.param(world, 1, case, marks=pytest.mark.slow)
            for world in (2, 3, 4)
            for case in cases(world)
        ),
    ],
    ids=str,
)
def test_chunks_change_no_result(world: int, step: int, case: Case):
    parts = results(world, step)[case]
    errors = case.errors(list(parts))
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


@pytest.mark.parametrize(("world", "heads"), [(2, (3, 1)), (3, (16, 2)), (4, (24, 3)), (12, (48, 8))])
def test_gradients_add_up_where_copies_of_a_kv_head_end_with_different_chunks(
    world: int, heads: tuple[int, int]
):
    case = Case("causal", 40, *heads, weights=(1, 1))
    assert max(case.errors(on_virtual_ranks(case.run, world)).values()) < case.tolerance


@pytest.mark.parametrize("heads", [(16, 8), (8, 1)])
def test_chunks_move_no_byte_more_and_need_no_memory_more(heads: tuple[int, int]):
    def run(comm: Any, weights: tuple[int, ...]) -> tuple[int, ...]:
        case = Case("causal", 256, *heads)
        prepared = (
            Registry("strategy")
            .load("ulysses")
            .prepare(case.problem(), Registry("kernel").load("naive"), comm, weights)
        )
        q, k, v, dout = (x[torch.from_numpy(prepared.shard.positions_L)] for x in case.inputs())
        before = comm.moved_bytes
        with Peak() as fwd:
            forward = prepared.forward(q, k, v)
        between = comm.moved_bytes
        with Peak() as bwd:
            prepared.backward(forward, dout)
        return between - before, comm.moved_bytes - between, fwd.most, bwd.most

    whole = on_virtual_ranks(lambda comm: run(comm, (1,)), 2)
    for weights in ((1, 1), (1, 2, 1), (1, 1, 1, 1)):
        for entry, cut in zip(
            whole, on_virtual_ranks(lambda comm, weights=weights: run(comm, weights), 2), strict=True
        ):
            assert cut[:2] == entry[:2]
            assert cut[2] <= entry[2]
            assert cut[3] <= entry[3]


def test_hosts_may_run_ahead_of_messages():
    """As on a GPU."""
    for strategy, heads in (("ulysses", (8, 8)), ("ulysses", (8, 1)), ("usp", (16, 8))):
        case = Case("causal", 70, *heads, strategy=strategy, weights=(1, 2, 1))
        parts = on_virtual_ranks(case.run, 4, keeps_order=True)
        assert max(case.errors(parts).values()) < case.tolerance
        assert all(part["repeatable"] for part in parts)


def test_notes_tell_of_chunks():
    (first, *_) = on_virtual_ranks(Case("full", 16, 64, 8, weights=(1, 2, 1)).run, 2)
    assert first["notes"][0] == "heads in chunks of 8, 16, 8"
    assert first["costs"]["num_kernel_calls"] == 3
    (first, *_) = on_virtual_ranks(Case("full", 16, 8, 4, strategy="usp", weights=(1, 1)).run, 4)
    assert first["notes"][:2] == ["a ring of 2, heads among 2", "in chunks of 2, 2"]
    assert first["costs"]["num_kernel_calls"] == 4
