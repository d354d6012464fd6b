"""Calls that cannot be, GPUs without work, and the command that checks an answer."""

import re
from typing import Any

import pytest

import longca
from longca.core.errors import UserError
from longca.lab.advice import question
from longca.lab.advice.ranking import advise
from longca.lab.cli.advise import _check
from longca.masks import build_mask

ONE: dict[str, Any] = {"kernels": ["band"], "strategies": ["ulysses"], "direction": "fwd"}


@pytest.mark.parametrize("ask", [advise, longca.choose])
def test_more_gpus_than_tokens_are_refused(ask):
    with pytest.raises(UserError) as error:
        ask("causal", seqlen="1K", gpus=2048)
    assert str(error.value).startswith("A sequence of 1K tokens cannot be divided among 2,048 GPUs: ")
    with pytest.raises(UserError, match="A sequence of 4 tokens cannot be divided among 8 GPUs"):
        ask(build_mask("causal", seqlen=4), gpus=8)


def test_so_many_gpus_that_no_plan_fits_into_memory_are_refused():
    with pytest.raises(UserError, match="1,000,000 GPUs are too many to predict"):
        advise("causal", seqlen="8M", gpus=1_000_000)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"draws": 3}, "Mask 'causal' is not drawn. Leave draws out"),
        ({"seed": 0}, "Mask 'causal' is not drawn. Leave seed out"),
        ({"strategies": ["usp"]}, "Strategy 'usp' is given for one GPU"),
    ],
)
def test_what_would_change_nothing_is_refused(asked: dict[str, Any], said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        advise("causal", seqlen="4K", **asked)


def test_masks_of_all_kinds_may_be_asked_about_in_one_loop():
    advice = advise(build_mask("causal", seqlen="4K"), draws=3, kernels=["band"])
    assert advice.seeds == ()


def test_gpus_without_heads_are_counted():
    """As the library runs such a call: ranks without heads only take part in its messages."""
    advice = advise("causal", seqlen="1K", gpus=65, **ONE)
    assert "1 of 65 GPUs idles under ulysses+band: there is no more to divide than 64 heads" in advice.finding
    assert advice.best.candidate.how.endswith("1 of 65 GPUs idle")
    assert advice.to_dict()["options"][0]["idle_gpus"] == 1
    busy = advise("causal", seqlen="1K", gpus=64, **ONE)
    assert "idle" not in busy.finding + busy.best.candidate.how
    rings = advise("causal", seqlen="1K", gpus=65, **ONE | {"strategies": ["ring_allgather"]})
    assert rings.best.candidate.num_idle == 0, "a ring divides tokens"


def test_gpus_without_tokens_are_counted():
    advice = advise("causal", seqlen=3, gpus=2, **ONE | {"strategies": ["ring_p2p"]})
    work = advice.best.candidate.work
    assert work is not None
    assert advice.best.candidate.num_idle == int((work.plan.sharding.num_tokens == 0).sum())


@pytest.mark.parametrize(
    ("gpus", "node", "start"),
    [
        (65, None, "torchrun --nnodes 13 --nproc-per-node 5 "),
        (8, 3, "torchrun --nnodes 4 --nproc-per-node 2 "),
        (16, None, "torchrun --nnodes 2 --nproc-per-node 8 "),
        (11, None, "torchrun --nnodes 11 --nproc-per-node 1 "),
        (8, None, "longca run "),
    ],
)
def test_the_command_starts_as_many_ranks_as_were_asked_for(gpus: int, node: int | None, start: str):
    assert _check(advise("full", seqlen="1K", gpus=gpus, ranks_per_node=node, **ONE), None).startswith(start)


def test_no_time_has_an_exponent(monkeypatch: pytest.MonkeyPatch):
    advice = advise("causal", seqlen="1M", gpus=64, gpu="h100", kernels=["band", "fa3", "fa4"])
    assert advice.changes and all(float(value.replace(",", "")) > 1000 for value in _times(advice.changes))
    assert question.MOST_GPUS >= 1024, "as many as the committed predictions have"


def _times(texts: tuple[str, ...]) -> list[str]:
    return [re.search(r"first, at (.*) ms", text)[1] for text in texts]  # type: ignore[index]
