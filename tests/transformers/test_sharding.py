"""A model that `shard` distributes over ranks has the loss and the gradients of one process."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from longca.cp import ContextParallel
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks
from tests.transformers.models import VOCABULARY, assert_equal, batch, model, restarting, step, transformers

import longca.transformers  # isort: skip
from longca.core.errors import UserError  # isort: skip

pytestmark = pytest.mark.long

FAMILIES = {
    "llama": "auto",
    "mistral": "ring_p2p",
    "gemma3": "usp",
    "llama4": "ring_allgather",
    "gpt_oss": "loongtrain",  # with sinks
    "deepseek_v3": "ulysses",  # values are narrower than keys
}
VISIBLE = torch.arange(30) >= torch.tensor([[0], [7]])


def inputs(number: int) -> dict[str, Any]:
    """Batches of several kinds: two rows, two packed rows, padding."""
    given = batch(2, 30, seed=number)
    if number == 1:
        given["position_ids"] = torch.cat([restarting(13, 17), restarting(30)])
    if number == 2:
        given["attention_mask"] = VISIBLE.long()
        given["labels"][~(VISIBLE & VISIBLE.roll(1, 1))] = -100
    return given


def trained(made: Any, unshard: Any = None) -> list[dict[str, Tensor]]:
    """Each batch by itself, then two of them with gradients that add up.

    Without packed rows for gpt-oss, whose documents Transformers mixes in one process.
    """
    results = []
    numbers = (0, 2) if made.config.model_type == "gpt_oss" else (0, 1, 2)
    for number in numbers:
        results.append(step(made, **inputs(number)))
        if unshard is not None:
            results[-1]["logits"] = unshard(results[-1]["logits"])
    made.zero_grad()
    for number in numbers[:2]:
        made(**inputs(number)).loss.backward()
    results.append({name: parameter.grad.clone() for name, parameter in made.named_parameters()})
    return results


def on_one_of_the_ranks(comm: Comm, family: str, strategy: str) -> list[dict[str, Tensor]]:
    made = model(family)
    sharding = longca.transformers.shard(made, strategy=strategy)
    results = trained(made, sharding.unshard)
    sharding.plan_ahead(**inputs(1))
    made(**inputs(1))
    assert sharding.context.world == comm.world and sharding.context.num_tokens < 60
    sharding.close()
    results.append(step(made, **inputs(0)))  # again a model for one process
    return results


@pytest.mark.parametrize(
    ("family", "world"),
    [
        ("llama", 2),
        ("gemma3", 3),
        ("gpt_oss", 2),
        ("deepseek_v3", 2),
        *(pytest.param(family, 4, marks=pytest.mark.slow) for family in FAMILIES),
    ],
)
def test_loss_and_gradients_are_those_of_one_process(family: str, world: int):
    expected = trained(model(family))
    for results in on_ranks(on_one_of_the_ranks, world, family, FAMILIES[family]):
        for number, (got, wanted) in enumerate(zip(results, [*expected, expected[0]], strict=True)):
            rows = VISIBLE if number == len(expected) - 2 else None  # that with padding
            assert_equal(got, wanted, rows, tolerance=4e-6)


def checkpointed(comm: Comm, family: str) -> list[tuple[int, dict[str, Tensor]]]:
    """By way of checkpointing: attention calls of a step, its loss and its gradients."""
    results = []
    for reentrant in (None, False, True):
        made = model(family)
        sharding = longca.transformers.shard(made, strategy="ring_p2p")
        if reentrant is not None:
            made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            made.enable_input_require_grads()  # the reentrant kind needs it
        with patch.object(
            ContextParallel, "attention", autospec=True, side_effect=ContextParallel.attention
        ) as calls:
            got = step(made, **inputs(0))
        results.append((calls.call_count, {name: x for name, x in got.items() if name != "logits"}))
        sharding.close()
    return results


def test_gradient_checkpointing_repeats_calls_and_changes_nothing():
    for (plain_calls, plain), *others in on_ranks(checkpointed, 2, "gemma3"):
        for calls, results in others:
            assert calls == 2 * plain_calls
            assert_equal(results, plain, tolerance=1e-7)


def test_one_process_without_a_group():
    expected = step(model("llama"), **inputs(1))
    made = model("llama")
    sharding = longca.transformers.shard(made)
    with pytest.raises(UserError, match="no context before its first call"):
        print(sharding.context)
    results = step(made, **inputs(1))
    assert_equal({**results, "logits": sharding.unshard(results["logits"])}, expected)
    ids = inputs(1)["input_ids"]
    assert made.eval()(ids).logits.shape == (1, ids.numel(), VOCABULARY)  # in its place, without labels
    sharding.close()


@pytest.mark.parametrize(
    ("family", "changes", "given", "said"),
    [
        (
            "llama",
            {},
            {"past_key_values": ()},
            "A sharded model takes no cache, and 'past_key_values' is one",
        ),
        ("llama", {}, {"input_ids": None}, "A sharded model needs input_ids or inputs_embeds"),
        (
            "llama",
            {},
            {"labels": torch.zeros(2, 7)},
            r"Argument 'labels' is \(2, 7\), and the batch is \(2, 30\)",
        ),
        (
            "llama",
            {},
            {"token_type_ids": torch.zeros(2, 30)},
            "A sharded model cannot distribute argument 'token_type_ids'",
        ),
        (
            "gemma3",
            {"is_causal": False, "layer_types": ["full_attention"] * 2},
            {"token_type_ids": torch.zeros(1)},
            "cannot distribute",
        ),
        (
            "llama4",
            {"floor_scale": 16},
            {},
            "This model scales attention by the place of a token from 16 tokens on",
        ),
    ],
)
def test_refusals(family: str, changes: dict[str, Any], given: dict[str, Any], said: str):
    made = model(family, **changes)
    longca.transformers.shard(made)
    with pytest.raises(UserError, match=said):
        made(**{**inputs(0), **given})


def test_models_that_cannot_be_sharded():
    with pytest.raises(UserError, match=r"^A Linear is no model of Transformers"):
        longca.transformers.shard(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match="load-balancing loss of its router"):
        longca.transformers.shard(model("gpt_oss", output_router_logits=True))
    bart = transformers.BartForCausalLM(transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=32, decoder_layers=1, decoder_attention_heads=4))  # fmt: skip
    with pytest.raises(UserError, match="takes no position_ids, and would number the tokens of each rank"):
        longca.transformers.shard(bart)


@pytest.mark.parametrize(
    ("kind", "given"), [("RobertaConfig", {}), ("OPTConfig", {"attention_mask": VISIBLE.long()})]
)
def test_models_that_number_tokens_by_padding_need_position_ids(kind: str, given: dict[str, Any]):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "is_decoder": True}
    sizes |= {"intermediate_size": 48, "ffn_dim": 48, "word_embed_proj_dim": 32}
    made = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, kind)(vocab_size=VOCABULARY, **sizes)
    ).eval()
    positions = torch.arange(2, 32).expand(2, -1)
    expected = made(**inputs(0), position_ids=positions).loss
    sharding = longca.transformers.shard(made)
    with pytest.raises(UserError, match=r"ForCausalLM needs position_ids: it numbers tokens by"):
        made(**{**inputs(0), **given})
    torch.testing.assert_close(made(**inputs(0), position_ids=positions).loss, expected)
    sharding.close()


def test_layers_of_other_heads_than_planned():
    """Fewer KV heads than planned are repeated, narrower heads padded; others are refused."""
    expected = step(model("llama"), **inputs(0))
    fitting: list[dict[str, Any]] = [{"num_kv_heads": 4}, {"head_dim": 24}]
    unfit: list[dict[str, Any]] = [{"num_kv_heads": 1}, {"head_dim": 8}, {"num_q_heads": 8}]
    for planned in fitting:
        made = model("llama")
        sharding = longca.transformers.shard(made, **planned)
        results = step(made, **inputs(0))
        assert_equal({**results, "logits": sharding.unshard(results["logits"])}, expected)
        sharding.close()
    for planned in unfit:
        made = model("llama")
        longca.transformers.shard(made, **planned)
        said = "LlamaAttention has 4 query heads, 2 KV heads and head dim 16: the plan is for .* Give num_q"
        with pytest.raises(UserError, match=said):
            made(**inputs(0))
