"""Nothing is compiled on a GPU after `longca.warm`, or after a context is made with `warm=True`, over 50
steps of random masks of all kinds: by Triton's own hook, which is called for every build that a kernel does
not have yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import longca
from longca.core import CallSpec, Registry
from longca.cp.comm.backend import Comm
from longca.cp.context import context_parallel
from longca.kernels import Problem
from longca.masks import build_mask
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.gpu.device import GPU, needs_gpu
from tests.helpers.ops.random_calls import attend_in_parts, attend_whole, random_mask

NUM_STEPS = 50
HEADS = (16, 2)
HEAD_DIM = 128

pytestmark = needs_gpu


@contextmanager
def new_builds() -> Iterator[list[str]]:
    """The names of kernels, one for each build that is made or loaded meanwhile."""
    from triton import knobs

    names: list[str] = []
    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda *_, **what: names.append(what["repr"])
    try:
        yield names
    finally:
        knobs.runtime.jit_post_compile_hook = before


def test_masks_of_all_kinds_compile_nothing_more() -> None:
    rng = np.random.default_rng(0)
    call = CallSpec(*HEADS, HEAD_DIM, "bf16", "bwd")
    assert longca.warm(*HEADS, head_dim=HEAD_DIM) > 0
    assert Registry("kernel").load("band").warm([(call, True)], GPU) > 0
    with new_builds() as names:
        for _ in range(NUM_STEPS):
            problem = Problem(random_mask(rng), *HEADS, HEAD_DIM, torch.bfloat16, GPU, True, False)
            attend_whole(problem)
            attend_in_parts(problem, rng)
        for name in ("causal", "full", "causal_document"):  # long enough for one pass
            attend_whole(
                Problem(build_mask(name, seqlen=16384), *HEADS, HEAD_DIM, torch.bfloat16, GPU, True, False)
            )
    assert names == []


def steps_of_a_context(comm: Comm) -> Any:
    rng = np.random.default_rng(0)  # the same masks on all ranks
    facts: dict[str, list[str]] = {}
    for strategy in ("auto", "ring_p2p", "ring_allgather", "usp", "ulysses", "loongtrain"):
        cp = context_parallel(
            build_mask("causal", seqlen=4096),
            strategy=strategy,
            num_q_heads=HEADS[0],
            num_kv_heads=HEADS[1],
            head_dim=HEAD_DIM,
            warm=True,
        )
        with new_builds() as names:
            for _ in range(NUM_STEPS):
                step = cp.with_mask(random_mask(rng))
                q, k, v = (
                    torch.zeros(
                        step.num_tokens, heads, HEAD_DIM, dtype=torch.bfloat16, device=step.positions.device
                    ).requires_grad_()
                    for heads in (HEADS[0], HEADS[1], HEADS[1])
                )
                step.attention(q, k, v).sum().backward()
        facts[strategy] = names
        cp.close()
    return facts


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_a_context_compiles_nothing_after_its_first_step() -> None:
    for facts in on_ranks(steps_of_a_context, 2, timeout_s=300.0, device_type="cuda"):
        assert all(names == [] for names in facts.values()), facts
