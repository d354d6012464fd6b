"""Small models of Transformers, made from configurations, and batches for them."""

from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip(
    "transformers", reason="these tests need Transformers: pip install longca[transformers]"
)

VOCABULARY = 97
TOKENS = 50
_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,  # noqa: E501
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "attention_dropout": 0.0,
}  # fmt: skip
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 9}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"],  # noqa: E501
                                    "query_pre_attn_scalar": 24}),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {  # noqa: E501
        "rope_type": "default", "rope_theta": 10000.0}}),
    "llama4": ("Llama4TextConfig", {"intermediate_size_mlp": 96, "attention_chunk_size": 8, "num_local_experts": 2,  # noqa: E501
                                    "num_experts_per_tok": 1, "no_rope_layers": [1, 0]}),
    "deepseek_v3": ("DeepseekV3Config", {"num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16,  # noqa: E501
                                         "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "n_group": 1,  # noqa: E501
                                         "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 32, "first_k_dense_replace": 1}),
}  # fmt: skip
FAMILIES = tuple(_CONFIGS)


def config(family: str, **changes: Any) -> Any:
    kind, own = _CONFIGS[family]
    return getattr(transformers, kind)(**{**_SIZES, **own, **changes})


def model(family: str, implementation: str = "longca", **changes: Any) -> Any:
    """The same weights for each implementation."""
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        config(family, **changes), attn_implementation=implementation
    )
    return made.float().train()


def restarting(*lengths: int) -> Tensor:
    """Position ids of packed documents, (1, tokens)."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


def batch(rows: int = 2, tokens: int = TOKENS, seed: int = 0) -> dict[str, Any]:
    """Without a cache: beside one, Transformers does not see that position ids restart."""
    ids = torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone(), "use_cache": False}


def step(made: Any, **inputs: Any) -> dict[str, Tensor]:
    """Loss, logits and the gradient of each parameter."""
    made.zero_grad()
    out = made(**inputs)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    return {"loss": out.loss.detach(), "logits": out.logits.detach(), **grads}


def assert_equal(
    results: dict[str, Tensor],
    expected: dict[str, Tensor],
    rows: Tensor | None = None,
    tolerance: float = 2e-6,
) -> None:
    """`rows`: bool (batch, tokens), the logits that are compared; None: all."""
    assert results.keys() == expected.keys() and len(results) > 10
    for name, wanted in expected.items():
        got = results[name]
        if name == "logits" and rows is not None:
            got = got[rows]
            wanted = wanted[rows]
        torch.testing.assert_close(
            got, wanted, rtol=tolerance * 10, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
