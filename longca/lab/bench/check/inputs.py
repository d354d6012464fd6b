"""The input tensors of a cell."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from longca.core import Dtype
from longca.lab.studies import Cell

DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SMALL = 0.01  # of a standard normal value


@dataclass(frozen=True)
class Inputs:
    """The input tensors. T tokens, H query heads, G KV heads, D head dim; T of q and dout is the number of
    new tokens where a cell has a context."""

    q_THD: torch.Tensor
    k_TGD: torch.Tensor
    v_TGD: torch.Tensor
    dout_THD: torch.Tensor


def make_inputs(cell: Cell, device: torch.device) -> Inputs:
    """The inputs of a cell for the whole sequence.

    They are the same for every kernel, strategy and direction of one mask, length, head count, dtype and kind
    of values, so that errors can be compared. They are sampled on the device: equal on all devices of one
    type, different between CPU and GPU.

    Standard normal values ("normal") keep a GPU's multipliers as busy as activations do. The others show what
    that costs in power: their signs alone ("signs", ±1: the same scores in distribution, and no mantissas), 1
    % of them ("small": all keys weigh alike), and 1 everywhere ("constant": no bit ever changes).
    """
    generator = torch.Generator(device).manual_seed(input_seed(cell))

    def draw(num_tokens: int, num_heads: int) -> torch.Tensor:
        like: dict[str, Any] = {"device": device, "dtype": DTYPES[cell.dtype]}
        shape = num_tokens, num_heads, cell.head_dim
        if cell.input_values == "constant":
            return torch.ones(shape, **like)
        normal = torch.randn(shape, generator=generator, **like)
        if cell.input_values == "signs":
            return torch.where(normal < 0, -1.0, 1.0).to(normal.dtype)
        return normal.mul_(SMALL) if cell.input_values == "small" else normal

    return Inputs(
        q_THD=draw(cell.num_queries, cell.num_q_heads),
        k_TGD=draw(cell.seqlen, cell.num_kv_heads),
        v_TGD=draw(cell.seqlen, cell.num_kv_heads),
        dout_THD=draw(cell.num_queries, cell.num_q_heads),
    )


def input_seed(cell: Cell) -> int:
    """The seed of the inputs and of the checked subset. It depends only on the problem, not on kernel,
    strategy or direction."""
    shared = {
        "mask": cell.mask,
        **cell.mask_key,
        "num_q_heads": cell.num_q_heads,
        "head_dim": cell.head_dim,
        "dtype": cell.dtype,
    }
    if cell.input_values != "normal":
        shared["input_values"] = cell.input_values
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:6], "big")
