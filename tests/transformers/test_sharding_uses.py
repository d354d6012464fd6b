"""A sharded model beyond plain steps: soft prompts, frozen weights, autocast that comes and goes,
compilation, and calls that a rank cannot answer alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks
from tests.transformers.models import VOCABULARY, batch, config, model, step, transformers

import longca.transformers  # isort: skip
from longca.core.errors import UserError  # isort: skip

pytestmark = pytest.mark.long

SOFT = 5  # tokens of the soft prompt


def inputs() -> dict[str, Any]:
    return batch(2, 30)


def by_soft_prompt(made: Any, is_frozen: bool) -> dict[str, Tensor]:
    """Gradients of a soft prompt outside of the model, and of parameters inside."""
    made.requires_grad_(not is_frozen)
    prompt = nn.Parameter(torch.full((1, SOFT, 64), 0.1))
    tokens = inputs()["input_ids"]
    embeds = torch.cat([prompt.expand(2, -1, -1), made.get_input_embeddings()(tokens[:, SOFT:])], 1)
    made(inputs_embeds=embeds, labels=tokens, use_cache=False).loss.backward()
    grads = {"prompt": prompt.grad}
    if not is_frozen:
        grads |= {name: parameter.grad for name, parameter in made.named_parameters()}
    return {name: grad for name, grad in grads.items() if grad is not None}


def by_leaf(made: Any) -> dict[str, Tensor]:
    made.requires_grad_(False)
    embeds = made.get_input_embeddings()(inputs()["input_ids"]).detach().requires_grad_()
    made(inputs_embeds=embeds, labels=inputs()["labels"], use_cache=False).loss.backward()
    assert embeds.grad is not None
    return {"embeds": embeds.grad}


def after_autocast(made: Any) -> dict[str, Tensor]:
    """A step without autocast, after and before steps with it."""
    with torch.autocast("cpu", torch.bfloat16):
        step(made, **inputs())
    results = step(made, **inputs())
    with torch.autocast("cpu", torch.bfloat16):
        step(made, **inputs())
    return {name: x for name, x in results.items() if name != "logits"}


def compiled(made: Any) -> dict[str, Tensor]:
    results = step(torch.compile(made, backend="aot_eager"), **inputs())
    return {name.removeprefix("_orig_mod."): x for name, x in results.items() if name != "logits"}


USES: dict[str, Callable[[Any], dict[str, Tensor]]] = {
    "soft prompt": lambda made: by_soft_prompt(made, is_frozen=False),
    "soft prompt of a frozen model": lambda made: by_soft_prompt(made, is_frozen=True),
    "embeddings that are a leaf": by_leaf,
    "after autocast": after_autocast,
    "compiled": compiled,
}


def sharded(comm: Comm) -> dict[str, dict[str, Tensor]]:
    results = {}
    for name, use in USES.items():
        made = model("llama")
        sharding = longca.transformers.shard(made, strategy="ring_p2p")
        results[name] = use(made)
        sharding.close()
    return results


def test_gradients_are_those_of_one_process():
    expected = {name: use(model("llama")) for name, use in USES.items()}
    for results in on_ranks(sharded, 2):
        for use, wanted in expected.items():
            assert results[use].keys() == wanted.keys()
            for name, x in wanted.items():
                torch.testing.assert_close(
                    results[use][name],
                    x,
                    rtol=4e-5,
                    atol=4e-6,
                    msg=lambda text, of=(use, name): f"{of}: {text}",
                )


def test_what_a_rank_cannot_answer_alone_is_refused():
    made = model("llama").eval()
    sharding = longca.transformers.shard(made)
    tokens = inputs()["input_ids"]
    with pytest.raises(
        UserError, match=r"^A sharded model cannot keep the logits of the last 3 tokens alone"
    ):
        made(tokens, logits_to_keep=3)
    with pytest.raises(UserError, match="cannot keep the logits"):  # which would decode from other tokens
        made.generate(tokens, max_new_tokens=2, use_cache=False, pad_token_id=0)
    with pytest.raises(UserError, match=r"^This model is sharded already. Close the ShardedModel"):
        longca.transformers.shard(made)
    sharding.close()
    longca.transformers.shard(made).close()
    assert made(tokens, logits_to_keep=3).logits.shape == (2, 3, VOCABULARY)
    classifier = transformers.AutoModelForTokenClassification.from_config(config("llama"))
    with pytest.raises(UserError, match="cannot be sharded: its labels are not those of next tokens"):
        longca.transformers.shard(classifier)
