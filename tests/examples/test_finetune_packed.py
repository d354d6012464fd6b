"""examples/finetune_packed.py: packed documents do not leak, and new ones in each step have one rank's loss.

The commands of the guide are in tests/transformers/test_page.py.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

import tests.transformers.models  # noqa: F401  (skips without Transformers)
from examples.finetune_packed import Options, batch_of, train
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long

FEW = Options(tokens=128, steps=3, device="cpu")
COMPOSED = {2: replace(FEW, fsdp=True), 4: replace(FEW, fsdp=True, tensor_parallel=2, strategy="ring_p2p")}


def trained(comm: Comm, options: Options) -> tuple[list[float], str]:
    lines: list[str] = []
    losses = train(options, lines.append)
    return losses, "\n".join(lines)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_losses_are_those_of_one_rank_and_documents_do_not_leak(world: int):
    [(alone, _)] = on_ranks(trained, 1, FEW)
    (losses, said), *others = on_ranks(trained, world, COMPOSED[world])
    np.testing.assert_allclose(losses, alone, rtol=2e-5)
    assert all(of_rank == losses for of_rank, _ in others)
    changed = re.search(r"changed: (\d+) of its tokens have other outputs, and 0 of other", said)
    assert changed and int(changed[1]) > 0


def test_each_step_packs_other_documents():
    starts = [(batch_of(FEW, step)["position_ids"][0] == 0).nonzero()[:, 0].tolist() for step in range(3)]
    assert len({tuple(of_step) for of_step in starts}) == 3
    for step, of_step in enumerate(starts):
        batch = batch_of(FEW, step)
        assert batch["input_ids"].shape == (1, FEW.tokens) and len(of_step) > 1
        assert (batch["labels"][0, of_step] == -100).all(), "no document predicts the next one"
