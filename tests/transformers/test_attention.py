"""Models of seven families with longca compute what they compute with "eager": loss, logits, gradients,
caches, and refusals."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.transformers.models import (
    FAMILIES,
    TOKENS,
    VOCABULARY,
    assert_equal,
    batch,
    config,
    model,
    restarting,
    step,
    transformers,
)

import longca.transformers  # isort: skip
from longca.core.errors import UserError  # isort: skip
from longca.transformers.attention import longca_attention  # isort: skip
from longca.transformers.masks import as_attention_mask, as_table  # isort: skip

VISIBLE = torch.arange(TOKENS) >= torch.tensor([[0], [7]])  # the second row has padding at its left
INPUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"position_ids": restarting(13, 1, 20, 16).expand(2, -1)},
    "packed rows that differ": {"position_ids": torch.cat([restarting(13, 37), restarting(TOKENS)])},
    "padding": {"attention_mask": VISIBLE.long()},
    "padding at the right": {"attention_mask": VISIBLE.flip(1).long()},
    "each pair": {"attention_mask": torch.rand(2, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)).gt(0.5)  # noqa: E501
                  | torch.eye(TOKENS, dtype=torch.bool)},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", INPUTS)
def test_training_equals_eager(family: str, kind: str):
    if kind.startswith("packed") and family == "gpt_oss":
        pytest.skip(
            "Transformers makes no masks of documents for gpt-oss: test_no_document_leaks_into_another"
        )
    inputs = {**batch(), **INPUTS[kind]}
    rows = None
    if inputs.get("attention_mask", torch.empty(0)).ndim == 2:
        rows = inputs["attention_mask"].bool()
        inputs["labels"][~(rows & rows.roll(1, 1))] = -100  # what padding predicts is arbitrary in "eager"
    eager_inputs = dict(inputs)
    if kind == "each pair":  # "eager" adds its mask to scores
        eager_inputs["attention_mask"] = torch.zeros(()).masked_fill(
            ~inputs["attention_mask"], torch.finfo(torch.float32).min
        )
        assert_equal(step(model(family), **eager_inputs), step(model(family, "eager"), **eager_inputs))
    assert_equal(step(model(family), **inputs), step(model(family, "eager"), **eager_inputs), rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_prefill_in_parts_and_generation_equal_eager(family: str, kind: str):
    ids = batch()["input_ids"]
    visible = VISIBLE.long()
    results = []
    for implementation in ("longca", "eager"):
        made = model(family, implementation).eval()
        cache = (
            transformers.DynamicCache(config=made.config)
            if kind == "dynamic"
            else transformers.StaticCache(config=made.config, max_cache_len=TOKENS + 9)
        )
        with torch.no_grad():
            parts = [
                made(
                    input_ids=ids[:, start:stop],
                    attention_mask=visible[:, :stop],
                    cache=cache,
                    use_cache=True,
                ).logits
                for start, stop in ((0, 20), (20, 31), (31, TOKENS))
            ]
            generated = made.generate(ids[:, :20], attention_mask=visible[:, :20], max_new_tokens=6, do_sample=False, pad_token_id=0,  # noqa: E501
                                      cache_implementation=None if kind == "dynamic" else kind, disable_compile=True)  # fmt: skip  # noqa: E501
        results.append((torch.cat(parts, 1)[VISIBLE], generated))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=2e-5, atol=2e-6)
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_documents_by_cu_seq_lens_are_those_of_position_ids(family: str):
    lengths = (13, 1, 20, 16)
    inputs = batch(1)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    flash = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 20, "max_length_k": 20}
    made = model(family)
    positions = restarting(*lengths)
    assert_equal(
        step(made, **inputs, position_ids=positions, **flash), step(made, **inputs, position_ids=positions)
    )
    whole = torch.arange(TOKENS)[None]  # rotary embeddings depend on differences of positions alone
    assert_equal(
        step(made, **inputs, position_ids=whole, **flash),
        step(made, **inputs, position_ids=positions),
        tolerance=5e-6,
    )


@pytest.mark.parametrize(
    ("family", "cu_seq_lens"), [("llama", None), ("llama4", None), ("gpt_oss", [0, 30, 50])]
)
def test_no_document_leaks_into_another(family: str, cu_seq_lens: list[int] | None):
    inputs = {**batch(1), "position_ids": restarting(30, 20)}
    if cu_seq_lens is not None:
        inputs["cu_seq_lens_q"] = torch.tensor(cu_seq_lens, dtype=torch.int32)
    made = model(family)
    before = made(**inputs).logits
    inputs["input_ids"][0, :30] = (inputs["input_ids"][0, :30] + 1) % VOCABULARY
    after = made(**inputs).logits
    assert torch.equal(before[0, 30:], after[0, 30:]) and not torch.equal(before[0, :30], after[0, :30])


def test_a_leak_by_a_cache_is_warned_of():
    """Transformers makes a cache by default, and then no mask of documents, for any attention."""
    inputs = {**batch(1), "use_cache": True}
    with pytest.warns(
        UserWarning, match="position_ids restart at token 30, .* give cu_seq_lens_q, or use_cache=False"
    ):
        model("llama")(**inputs, position_ids=restarting(30, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model("llama")(**inputs, position_ids=restarting(50))
        model("llama")(**{**inputs, "use_cache": False}, position_ids=restarting(30, 20))


def test_checkpointing_autocast_and_encoders():
    plain = model("gpt_oss")
    inputs = batch()
    expected = step(plain, **inputs)
    plain.gradient_checkpointing_enable()
    assert_equal(step(plain, **inputs), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(model("llama")(**inputs).loss)
    results = []
    for implementation in ("longca", "eager"):
        torch.manual_seed(0)
        bert = transformers.BertModel(transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,  # noqa: E501
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=implementation))  # fmt: skip  # noqa: E501
        for visible in (torch.ones_like(VISIBLE), VISIBLE):
            results.append(
                bert(inputs["input_ids"], attention_mask=visible.long()).last_hidden_state[visible]
            )
    for got, wanted in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)


def test_a_mask_for_each_head_where_keys_are_shared():
    visible = torch.rand(2, 4, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) < 0.5
    visible |= torch.eye(TOKENS, dtype=torch.bool)
    added = torch.zeros(()).masked_fill(~visible, torch.finfo(torch.float32).min)
    expected = step(model("llama", "eager"), **batch(), attention_mask=added)
    assert_equal(step(model("llama"), **batch(), attention_mask=visible), expected)


class Layer(nn.Module):
    is_causal = True


def call(
    tokens: int = 8, keys: int | None = None, width: int = 4, mask: Tensor | None = None, **options: Any
) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, count, size, generator=generator)
               for count, size in ((tokens, 4), (keys or tokens, 4), (keys or tokens, width)))  # fmt: skip
    return longca_attention(Layer(), q, k, v, mask, **options)[0]


@pytest.mark.parametrize("width", [2, 7])
def test_values_of_another_width_than_keys(width: int):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 8, size, generator=generator) for size in (4, 4, width))
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(call(width=width), expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"dropout": 0.1},
            "Layer asks for dropout of attention weights, which longca does not have. Set "
            "attention_dropout=0.0",
        ),
        (
            {"softcap": 30.0},
            "Layer asks for a softcap of scores, which longca does not have. Set another attn_implementation",
        ),
        ({"position_bias": torch.zeros(1)}, "Layer asks for a bias on scores"),
        ({"output_attentions": True}, "Layer asks for attention weights, which longca does not compute"),
        ({"mask": torch.full((1, 1, 8, 8), -3.0)}, "A 4-D attention mask has numbers other than 0 and −inf"),
        (
            {"mask": torch.ones(1, 8, dtype=torch.bool)},
            "An attention mask of 2 dimensions is no mask of longca",
        ),
        (
            {"mask": torch.ones(1, 1, 8, 8, dtype=torch.int64)},  # of the shape of longca's own mask
            "A 4-D attention mask is of dtype torch.int64. Give a bool or float mask",
        ),
        ({"keys": 9}, "8 queries and 9 keys without a mask are no causal attention"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 5, 9])},
            "cu_seq_lens_q from 0 to 9 are no documents of 1 rows of 8 tokens",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 5, 8]), "cu_seq_lens_k": torch.tensor([0, 4, 8])},
            "cu_seq_lens_q and cu_seq_lens_k differ",
        ),
    ],
)
def test_refusals_are_one_line(options: dict[str, Any], said: str):
    with pytest.raises(UserError) as refused:
        call(**options)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_models_with_softcap_or_dropout_are_refused():
    softcap = transformers.AutoModelForCausalLM.from_config(
        transformers.Gemma2Config(**{**config("llama").to_dict(), "model_type": "gemma2", "architectures": None,  # noqa: E501
                                     "attn_logit_softcapping": 30.0}), attn_implementation="longca")  # fmt: skip  # noqa: E501
    with pytest.raises(UserError, match=r"^Gemma2Attention asks for a softcap of scores"):
        softcap(**batch())
    with pytest.raises(UserError, match=r"^LlamaAttention asks for dropout"):
        model("llama", attention_dropout=0.1)(**batch())


OWN_COMPUTATION: dict[str, dict[str, Any]] = {
    "BloomConfig": {"n_layer": 1, "n_head": 4},
    "XGLMConfig": {"d_model": 64, "ffn_dim": 96, "num_layers": 1, "attention_heads": 4},
    "DogeConfig": {"num_hidden_layers": 1, "intermediate_size": 96, "num_attention_heads": 4},
    "DeepseekV32Config": {**config("deepseek_v3").to_dict(), "index_head_dim": 16, "index_n_heads": 4,
                          "index_topk": 8,
                          "model_type": "deepseek_v32", "architectures": None, "num_hidden_layers": 1},
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN_COMPUTATION)
@pytest.mark.parametrize("tokens", [8, 20])
def test_models_that_compute_with_their_mask_are_refused(kind: str, tokens: int):
    """Also where the shape of longca's mask, 8 wide, happens to fit."""
    made = getattr(transformers, kind)(
        **{"vocab_size": VOCABULARY, "hidden_size": 64, **OWN_COMPUTATION[kind]}
    )
    computing = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="longca")
    with pytest.raises(
        UserError, match=r"^This model computes with its attention mask .* Set another"
    ) as said:
        computing(**batch(1, tokens))
    assert "\n" not in str(said.value)


def test_a_mask_that_a_model_pads_or_cuts_is_refused():
    mask = as_attention_mask(torch.zeros(2, 8, dtype=torch.int64))
    for change in (lambda x: nn.functional.pad(x, (0, 3)), lambda x: x[..., :5], lambda x: x == 0):
        with pytest.raises(UserError, match=r"^This model computes with its attention mask"):
            change(mask)
    for same in (mask.to("cpu").clone(), mask.expand(3, -1, -1, -1)):
        assert as_table(same) is not None


def test_attention_weights_that_the_config_asks_for_are_refused():
    with pytest.raises(UserError, match=r"^LlamaAttention asks for attention weights"):
        model("llama", output_attentions=True)(**batch())
    assert model("llama", output_attentions=True)(**batch(), output_attentions=False).loss.isfinite()


def test_a_mask_of_three_dimensions_is_refused():
    with pytest.raises(UserError, match=r"^An attention mask of 3 dimensions is none of padding"):
        model("llama")(**batch(), attention_mask=torch.ones(2, TOKENS, TOKENS))


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.57.1")
    with pytest.raises(UserError, match=r"^Transformers 4\.57\.1 is too old: .* Install transformers>=5\."):
        longca.transformers.register()
