"""examples/prefill.py: a prompt in chunks has the loss and next token of one chunk on one rank."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from examples.prefill import Options, prefill
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long

ONE = Options(tokens=120, head_dim=16)
DOCUMENTS = replace(ONE, documents=(50, 1, 69))
CHUNKED = [
    replace(options, chunk=chunk, strategy=strategy)
    for options, chunk, strategy in (
        (ONE, 50, "ring_allgather"),
        (ONE, 17, "ring_p2p"),
        (DOCUMENTS, 120, "ulysses"),
        (DOCUMENTS, 32, "auto"),
    )
]


def each(comm: Comm, all_options: list[Options]) -> list[dict[str, Any]]:
    return [prefill(options, dist.group.WORLD) for options in all_options]


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_chunks_over_ranks_are_as_one_chunk_on_one_rank(world: int):
    [[whole, documents]] = on_ranks(each, 1, [ONE, DOCUMENTS])
    assert (whole["logits"] - documents["logits"]).norm() > 0.01 * whole["logits"].norm()
    for results in on_ranks(each, world, CHUNKED):
        for options, actual in zip(CHUNKED, results, strict=True):
            expected = documents if options.documents else whole
            assert abs(actual["loss"] - expected["loss"]) < 2e-3 and actual["next"] == expected["next"]
            error = (actual["logits"] - expected["logits"]).norm() / expected["logits"].norm()
            assert error < 4 * torch.finfo(torch.bfloat16).eps, options
            assert len(actual["tokens"]) == -(-options.tokens // options.chunk)
