"""Nothing is compiled after `compile_builds`, whatever masks come: launches of plans of random masks, whole
and in parts on ranks, by a stand-in for the compiler that counts its calls."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.core import Registry
from longca.cp.partition import make_sharding
from longca.cp.runtime.plan_attention import LocalSteps
from longca.cp.schedule import Gather, Ring
from longca.kernels import Problem
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.ops.band.tables.backward_rule import AddOrder

pytest.importorskip("triton")
HOPPER = (9, 0)
CPU = torch.device("cpu")
NUM_MASKS = 50
MOST_TOKENS = 1500
SCHEDULES = (Ring(), Ring(two_way=True), Gather(), Gather(0), Gather(2))
NAMES = [
    name
    for name in Registry("mask").names()
    if Registry("mask").load(name).family != "dynamic" and name != "block_causal_document"
]


@contextmanager
def counted_builds(capability: tuple[int, int] | None) -> Iterator[tuple[Any, list[str]]]:
    """(launches, names of the kernels that were compiled, one for each build)"""
    from tests.helpers.ops.recorded_launches import FOUND, recorded_launches

    compiled: list[str] = []
    # memory that stored addends need not find zeroed, and that is freed here, is not looked at
    with patch.dict(FOUND, clear=True), recorded_launches(capability) as launched:
        import triton

        stand_in = triton.compiler.compile

        def compile(source: Any, target: Any, options: Any) -> Any:
            compiled.append(source.fn.__name__)
            return stand_in(source, target, options)

        with patch("triton.compiler.compile", compile):
            yield launched, compiled


def random_mask(rng: np.random.Generator) -> Mask:
    seqlen = int(rng.integers(130, MOST_TOKENS))
    if rng.random() < 0.7:
        return build_mask(str(rng.choice(NAMES)), seqlen=seqlen, seed=int(rng.integers(1 << 30)))
    edges = [0, *sorted(rng.choice(np.arange(1, seqlen), 6, replace=False).tolist()), seqlen]
    rows = []
    for start, end in itertools.pairwise(edges):
        first, last = sorted(rng.integers(0, seqlen + 1, 2).tolist())
        low, high = sorted(rng.integers(-seqlen, seqlen, 2).tolist())
        rows.append((start, end, first, last, rng.choice([low, -INF]), rng.choice([high, INF])))
    return Mask(seqlen, seqlen, (as_bands(rows),))


def attend_whole(problem: Problem) -> None:
    prepared = Registry("kernel").load("band").prepare(problem)
    q, k = (
        torch.zeros(problem.mask.seqlen_q, heads, problem.head_dim, dtype=problem.dtype)
        for heads in (problem.num_q_heads, problem.num_kv_heads)
    )
    prepared.backward(prepared.forward(q, k, k), q)


def attend_in_parts(problem: Problem, rng: np.random.Generator) -> None:
    world = int(rng.integers(2, 5))
    sharding = make_sharding(str(rng.choice(["zigzag", "heap-64", "stripes"])), problem.mask, world)
    plan = SCHEDULES[rng.integers(len(SCHEDULES))].plan(problem.mask, sharding)
    rank = int(rng.integers(world))
    steps = LocalSteps(plan, rank, problem, Registry("kernel").load("band"))
    new = partial(torch.zeros, dtype=problem.dtype)
    q = new(int(sharding.num_tokens[rank]), problem.num_q_heads, problem.head_dim)
    keys = {
        number: new(plan.step(rank, number).num_keys, problem.num_kv_heads, problem.head_dim)
        for number in steps.steps
    }
    total = steps.output_accumulator(q)
    for number, k in keys.items():
        steps.forward(number, total, k, k)
        total.add()
    out, lse = total.result()
    total_dq = steps.dq_accumulator(q)
    for number, k in keys.items():
        steps.backward(number, total_dq, k, k, out, lse, q)
        total_dq.add()
    total_dq.result()


@pytest.mark.parametrize("capability", [HOPPER, (8, 0)], ids=["hopper", "portable"])
@pytest.mark.parametrize(("heads", "head_dim"), [((8, 1), 128), ((6, 2), 64), ((3, 3), 128)])
def test_masks_of_all_kinds_compile_nothing_more(
    capability: tuple[int, int], heads: tuple[int, int], head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longca.ops.band import plan
    from longca.ops.band.builds import CallForm, builds_of, compile_builds

    rng = np.random.default_rng(sum(heads))
    # any order, whatever the rule makes of masks that are so short
    orders = [None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST]
    monkeypatch.setattr(plan, "preferred_dq_order", lambda *_: orders[rng.integers(3)])
    with counted_builds(capability) as (launched, compiled):
        form = CallForm(*heads, head_dim, torch.bfloat16, in_parts=True)
        builds = builds_of(form, CPU, capability=capability)
        number = compile_builds(builds, CPU)
        assert number == len(compiled) <= 48, "few"
        compiled.clear()
        for _ in range(NUM_MASKS):
            problem = Problem(random_mask(rng), *heads, head_dim, torch.bfloat16, CPU, True, False)
            attend_whole(problem)
            attend_in_parts(problem, rng)
            launched.kept.clear()
            launched.clear()
        assert compiled == [], "a mask asked for another build"


def test_builds_of_block_masks_are_listed_by_example() -> None:
    from longca.ops.band.builds import CallForm, builds_of, compile_builds

    blocks = build_mask("block_sparse_uniform", seqlen=1024, block=64, density=0.5)
    with counted_builds(HOPPER) as (_, compiled):
        form = CallForm(8, 1, 128, torch.bfloat16)
        compile_builds(builds_of(form, CPU, [blocks], HOPPER), CPU)
        compiled.clear()
        other = build_mask("block_sparse_uniform", seqlen=2048, block=64, density=0.1, seed=5)
        attend_whole(Problem(other, 8, 1, 128, torch.bfloat16, CPU, True, False))
        assert compiled == []
