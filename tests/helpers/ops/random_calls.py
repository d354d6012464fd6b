"""Calls of `band` under random masks of all kinds, whole and in parts on ranks, without messages."""

import itertools
from functools import partial

import numpy as np
import torch

from longca.core import Registry
from longca.cp.partition import make_sharding
from longca.cp.runtime.plan_attention import LocalSteps
from longca.cp.schedule import Gather, Ring
from longca.kernels import Problem
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands

MOST_TOKENS = 1500
SCHEDULES = (Ring(), Ring(two_way=True), Gather(), Gather(0), Gather(2))
NAMES = [
    name
    for name in Registry("mask").names()
    if Registry("mask").load(name).family != "dynamic" and name != "block_causal_document"
]


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
        torch.zeros(
            problem.mask.seqlen_q, heads, problem.head_dim, dtype=problem.dtype, device=problem.device
        )
        for heads in (problem.num_q_heads, problem.num_kv_heads)
    )
    prepared.backward(prepared.forward(q, k, k), q)


def attend_in_parts(problem: Problem, rng: np.random.Generator) -> None:
    world = int(rng.integers(2, 5))
    sharding = make_sharding(str(rng.choice(["zigzag", "heap-64", "stripes"])), problem.mask, world)
    plan = SCHEDULES[rng.integers(len(SCHEDULES))].plan(problem.mask, sharding)
    rank = int(rng.integers(world))
    steps = LocalSteps(plan, rank, problem, Registry("kernel").load("band"))
    new = partial(torch.zeros, dtype=problem.dtype, device=problem.device)
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
