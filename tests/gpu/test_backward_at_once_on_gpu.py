"""Backward with all keys in one call on one GPU, whose ranks are threads, against one device."""

from typing import Any

import pytest
import torch

from longca.core import Registry
from longca.kernels import Problem
from longca.masks import build_mask
from tests.helpers.cp.virtual import VirtualComm, on_virtual_ranks
from tests.helpers.gpu.device import GPU, needs_gpu

HEADS = (64, 8)
TOKENS = 8192  # of a rank
pytestmark = needs_gpu


@pytest.mark.parametrize(
    ("mask", "strategy", "world"),
    [
        ("full_document", "ring_allgather", 4),
        ("causal_document", "ring_allgather", 2),
        ("shared_question", "ring_p2p", 2),
        ("full_document", "loongtrain", 2),
    ],
)
def test_gradients_are_those_of_one_device(mask: str, strategy: str, world: int) -> None:
    kernel = Registry("kernel").load("band")
    seen = build_mask(mask, seqlen=world * TOKENS, corpus="prolong64k")
    problem = Problem(seen, *HEADS, 128, torch.bfloat16, GPU, needs_backward=True)
    generator = torch.Generator(GPU).manual_seed(0)
    q, k, v, dout = (
        torch.randn(seen.seqlen_q, heads, 128, device=GPU, generator=generator).bfloat16()
        for heads in (HEADS[0], HEADS[1], HEADS[1], HEADS[0])
    )
    whole = kernel.prepare(problem)
    forward = whole.forward(q, k, v)
    expected = (forward.out, *whole.backward(forward, dout))

    def run(comm: VirtualComm) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        comm.device = GPU
        some: Any = comm
        prepared = Registry("strategy").load(strategy).prepare(problem, kernel, some)
        assert "backward with all keys in one call" in prepared.notes
        mine = torch.from_numpy(prepared.shard.positions_L).to(GPU)
        result = prepared.forward(*(x[mine] for x in (q, k, v)))
        first, again = (prepared.backward(result, dout[mine]) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
        return mine, (result.out, *first)

    places, parts = zip(*on_virtual_ranks(run, world), strict=True)
    positions = torch.cat(places)
    for number, reference in enumerate(expected):
        value = torch.cat([part[number] for part in parts]).float()
        error = (value - reference[positions].float()).norm() / reference.float().norm()
        assert float(error) < 0.01, (number, float(error))
