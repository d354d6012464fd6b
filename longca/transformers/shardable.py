"""Conditions under which the tokens of a model can be distributed, and the heads that are planned for it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from longca.core import UserError

LOSSES = (None, "ForCausalLM", "ForConditionalGeneration")
"""types of losses in which a token predicts the next one; None: a model without a loss"""
FROM_TOKENS = "create_position_ids_from_input_ids"
"""the function by which models of RoBERTa's kind number tokens, from `pad_token_id` + 1 on"""
FROM_PADDING = re.compile(r"position_ids = .*cumsum")
"""as models of OPT's kind number the tokens that are no padding"""


def check_model(model: nn.Module, config: Any) -> None:
    """Raises UserError if a rank cannot compute this model from a part of the tokens.

    Args:
        config: of the model's text.
    """
    if getattr(config, "output_router_logits", False):
        raise UserError(
            "A sharded model cannot compute the load-balancing loss of its router",
            why="it is not a sum over tokens",
            todo="Set output_router_logits=False in the model's config",
        )
    if getattr(model, "loss_type", None) not in LOSSES:
        raise UserError(
            f"A {type(model).__name__} cannot be sharded",
            why="its labels are not those of next tokens",
            todo="Shard the model inside it, and compute your loss from its outputs",
        )
    if not any("position_ids" in inspect.signature(part.forward).parameters for part in _parts(model)):
        raise UserError(
            f"A {type(model).__name__} cannot be sharded",
            why="it takes no position_ids, and would number the tokens of each rank from 0",
            todo="Train it on one rank",
        )


class Numbering(NamedTuple):
    """The way in which a model numbers tokens that come without position_ids, read from its source once."""

    model: str
    """the name of its class"""
    by_tokens: bool
    """by its input ids, of which some are padding"""
    by_padding: bool
    """by the padding that an attention mask shows"""

    @classmethod
    def of(cls, model: nn.Module) -> Numbering:
        sources = [_source(part) for part in _parts(model)]
        return cls(
            type(model).__name__,
            any(FROM_TOKENS in source for source in sources),
            any(FROM_PADDING.search(source) for source in sources),
        )

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises UserError if the model would number this batch's tokens otherwise than 0, 1, 2 …

        Args:
            given: arguments of the model.
        """
        if given.get("position_ids") is not None or not (self.by_tokens or self.by_padding):
            return
        mask = given.get("attention_mask")
        if self.by_tokens or (mask is not None and mask.ndim == 2 and not bool(mask.all())):
            raise UserError(
                f"A sharded {self.model} needs position_ids",
                why="it numbers tokens by those that are padding, and a rank has only a part of them",
                todo="Give the position_ids that the model makes on one rank",
            )


def planned_heads(config: Any, num_q_heads: int | None, num_kv_heads: int | None) -> dict[str, int]:
    """Heads and head dim that hold those of every layer, as arguments of `longca.context_parallel`.

    Args:
        num_q_heads, num_kv_heads: instead of those of the config; None: those of the config.
    """
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    own_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    latent = getattr(config, "qk_nope_head_dim", None)  # multi-head latent attention
    if latent is not None and getattr(config, "kv_lora_rank", None):
        own_kv_heads = num_heads
        head_dim = max(latent + config.qk_rope_head_dim, config.v_head_dim)
    return {
        "num_q_heads": num_q_heads or num_heads,
        "num_kv_heads": num_kv_heads or own_kv_heads,
        "head_dim": head_dim,
    }


def _parts(model: nn.Module) -> list[nn.Module]:
    """The model and the models inside it: all that have a config."""
    return [module for module in model.modules() if hasattr(module, "config") and hasattr(module, "dtype")]


def _source(model: nn.Module) -> str:
    """The text of the module that defines a model; "" where there is none."""
    try:
        return inspect.getsource(sys.modules[type(model).__module__])
    except (KeyError, OSError, TypeError):
        return ""
