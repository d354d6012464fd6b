"""examples/train_composed.py: FSDP2 × CP × TP, activation checkpointing and micro-batches of differing lengths have
the losses and the gradients of one rank."""  # noqa: E501

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from examples.train_composed import IGNORED, VOCABULARY, Options, Training, mesh_of, sequence_of
from longca.core.errors import UserError
from longca.cp.calls.planning import MaskPlanner, _key
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long

TINY = Options(tokens=64, head_dim=8, layers=2, device="cpu")
SHORT = replace(TINY, tokens=3)  # some ranks have no tokens
COMPOSED = {
    4: [
        replace(TINY, tensor=2, checkpoint="non-reentrant"),
        replace(TINY, data=2, strategy="ring_p2p", checkpoint="reentrant"),
        replace(TINY, strategy="usp"),  # heads and keys are divided
        replace(SHORT, checkpoint="reentrant"),
    ],
    8: [
        replace(TINY, data=2, tensor=2, strategy=strategy, checkpoint=checkpoint)
        for strategy in ("ring_p2p", "ring_allgather", "ulysses")
        for checkpoint in ("none", "reentrant", "non-reentrant")
    ],
}
CLOSE = 1e-5  # relative, of norms


def trained(comm: Comm, all_options: list[Options]) -> list[dict[str, Any]]:
    """By options: losses of three steps, gradients of the first, and the number of plans that were begun only
    when they were needed."""
    late = []
    take = MaskPlanner.take

    def noting(planner: MaskPlanner, masks: Any) -> Any:
        late.append(_key(masks) not in (*planner._started, *planner._kept))
        return take(planner, masks)

    results = []
    for options in all_options:
        late.clear()
        with patch.object(MaskPlanner, "take", noting):
            training = Training(options, mesh_of(options))
            if comm.device.type == "cuda":  # for the log of a run on GPUs
                print(f"rank {comm.rank}: {options}\n{training.cp} {training.cp.notes}", flush=True)
            results.append(steps(training))
        results[-1]["late"] = sum(late)
    return results


def steps(training: Training) -> dict[str, Any]:
    losses = [training.backward(0)]
    # a collective call in the order of names
    gradients = {name: whole(weight.grad) for name, weight in training.model.named_parameters()}
    for step in (1, 2):
        training.update()
        losses.append(training.backward(step))
    training.close()
    return {"losses": [float(loss) for loss in losses], **gradients}


def whole(x: Any) -> torch.Tensor:
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).cpu().clone()


@pytest.mark.parametrize("world", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_losses_and_gradients_are_those_of_one_rank(world: int):
    [[ordinary, short]] = on_ranks(trained, 1, [TINY, SHORT])
    assert ordinary["losses"][2] < ordinary["losses"][0]
    for of_rank in on_ranks(trained, world, COMPOSED[world]):
        for options, actual in zip(COMPOSED[world], of_rank, strict=True):
            expected = ordinary if options.tokens == TINY.tokens else short
            np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=CLOSE, err_msg=str(options))
            assert actual.keys() == expected.keys() and actual["late"] == 1, (
                "but the first, all are planned ahead"
            )
            for name in expected.keys() - {"losses", "late"}:
                apart = (actual[name] - expected[name]).norm() / expected[name].norm()
                assert apart < CLOSE, (options, name)


def test_sequences_differ_in_length_and_documents_and_leave_labels_out():
    sequences = [sequence_of(TINY, number) for number in range(20)]
    assert len({len(sequence.tokens) for sequence in sequences}) > 10
    for sequence in sequences:
        assert TINY.tokens / 2 <= len(sequence.tokens) == len(sequence.labels) <= TINY.tokens
        ends = np.cumsum(sequence.documents) - 1
        assert (sequence.labels == IGNORED).nonzero()[:, 0].tolist() == ends.tolist()
        paces = (sequence.labels - sequence.tokens)[sequence.labels != IGNORED] % VOCABULARY
        assert set(paces.tolist()) <= {1, 2, 3}
        assert sequence.mask.documents is not None and sequence.mask.documents.tolist() == [
            *sequence.documents
        ]


def refusals(comm: Comm) -> list[str]:
    texts = []
    for options in (
        replace(TINY, tensor=3),
        replace(TINY, data=2, sequences=3),
        replace(TINY, tensor=2, num_kv_heads=1),
    ):
        with pytest.raises(UserError) as refused:
            mesh_of(options)
        texts.append(str(refused.value))
    return texts


def test_what_does_not_fit_is_refused_in_one_line():
    for texts in on_ranks(refusals, 2):
        assert "1 groups × 3 ranks of a layer do not fit: there are 2 ranks" in texts[0]
        assert "3 sequences a step" in texts[1] and "1 KV heads cannot be shared evenly by 2" in texts[2]
        assert not any("\n" in text for text in texts)
