"""All keys of a rank in one backward call: their order, their mask, and when it is chosen."""

import numpy as np
import pytest
import torch

from longca.core import CallSpec, Registry
from longca.cp.partition.sharding import make_sharding
from longca.cp.schedule.keys_at_once import KeyRuns, computes_at_once
from longca.cp.schedule.plan import Plan
from longca.cp.schedule.ring_and_gather import Gather, Ring
from longca.kernels import Problem
from longca.masks import Mask, build_mask
from tests.helpers.cp.case import STATIC_MASKS

CALL = CallSpec(64, 8, 128, "bf16", "bwd")


def plan_of(mask: Mask, world: int, sharding: str, schedule: Gather | Ring | None = None) -> Plan:
    return (schedule or Gather(1)).plan(mask, make_sharding(sharding, mask, world))


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "heap-8", "level-8"])
@pytest.mark.parametrize("name", STATIC_MASKS)
def test_keys_lie_in_the_order_of_the_sequence(name: str, sharding: str) -> None:
    mask = build_mask(name, seqlen=113, seed=3, **STATIC_MASKS[name])
    for world, schedule in ((2, Ring()), (2, Gather()), (3, Gather()), (4, Gather())):
        plan = plan_of(mask, world, sharding, schedule)
        positions = plan.sharding.positions
        for rank in range(world):
            runs = KeyRuns.of(plan, rank)
            layout = [positions(rank)]
            layout += [positions(owner)[start:end] for owner, start, end in plan.needed_kv(rank, 1)]
            tokens = np.concatenate(layout)
            keys = np.concatenate(
                [tokens[start:end] for start, end in zip(runs.starts, runs.ends, strict=True)]
            )
            assert keys.tolist() == sorted(tokens.tolist()) and runs.num_keys == len(tokens)
            expected = mask.dense()[np.ix_(positions(rank), keys)]
            np.testing.assert_array_equal(runs.mask(plan, rank).dense(), expected)


def test_gradients_find_their_way_back() -> None:
    plan = plan_of(build_mask("causal", seqlen=96), 3, "zigzag")
    for rank in range(3):
        runs = KeyRuns.of(plan, rank)
        columns = np.concatenate(
            [np.arange(start, end) for start, end in zip(runs.starts, runs.ends, strict=True)]
        )
        for own in (True, False):
            back = np.concatenate(
                [columns[start:end] for start, end in runs.in_layout(own=own)] or [columns[:0]]
            )
            first, last = (0, runs.num_own) if own else (runs.num_own, runs.num_keys)
            assert back.tolist() == list(range(first, last))


def chosen(name: str, world: int, tokens: int, kernel: str = "band") -> bool:
    corpus = {"corpus": "prolong64k"} if "document" in name else {}
    mask = build_mask(name, seqlen=world * tokens, **corpus)
    strategy = Registry("strategy").load("ring_allgather")
    problem = Problem(mask, 64, 8, 128, torch.bfloat16, torch.device("cpu"), needs_backward=True)
    work = strategy.partition_work(problem, Registry("kernel").load(kernel), world)
    return work.backward_at_once


def test_documents_are_at_once_and_whole_rows_are_not() -> None:
    """`full` would wait for three quarters of its keys; other kernels predict no time."""
    assert chosen("full_document", 4, 8192)
    assert not chosen("full", 4, 8192)
    assert not chosen("full_document", 4, 8192, "naive")


def test_only_one_exchange_of_chunks_is_at_once() -> None:
    mask = build_mask("full_document", seqlen=4 * 8192)
    kernel = Registry("kernel").load("band")
    assert computes_at_once(plan_of(mask, 4, "contiguous"), CALL, kernel)
    assert computes_at_once(plan_of(mask, 2, "contiguous", Ring()), CALL, kernel)
    others = [
        plan_of(mask, 4, "contiguous", Gather(0)),
        plan_of(mask, 4, "contiguous", Gather(2)),
        plan_of(mask, 4, "contiguous", Ring()),
        plan_of(mask, 2, "contiguous", Gather(0)),
        plan_of(mask, 4, "stripes"),
        plan_of(mask, 1, "contiguous"),
        plan_of(mask, 8, "contiguous"),
        plan_of(build_mask("block_sparse_uniform", seqlen=4 * 8192, density=0.5), 4, "contiguous"),
    ]
    assert not any(computes_at_once(plan, CALL, kernel) for plan in others)


def test_few_received_keys_cost_less_than_a_second_call() -> None:
    """A document ends a little behind the border of two ranks."""
    mask = Mask.from_documents([6000, 3000, 7384], causal=False)
    assert computes_at_once(plan_of(mask, 2, "contiguous"), CALL, Registry("kernel").load("band"))
