"""The attention function of `attn_implementation="longca"`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longca.core import UserError
from longca.dispatch import attention
from longca.dispatch.torch_op import mask_table, masks_of_table, traced_attention
from longca.masks import Mask, band, breaks_graph
from longca.masks.band import spread
from longca.transformers.layers import LayerContext
from longca.transformers.masks import OTHER, BandAttentionMask, as_table, table_of_dense

CONTEXT = "longca_context"
"""the argument by which a sharded model hands its context to the attention of each layer"""


def longca_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    longca_context: LayerContext | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, as Transformers calls it. B entries, H query heads, G KV heads.

    Args:
        query: (B, H, Tq, D); key: (B, G, Tk, D); value: (B, G, Tk, Dv).
        attention_mask: the table of `longca_mask`; or a mask for each pair, (B, 1, G or H, Tq, Tk); None:
            causal if the layer is, else all keys are visible.
        scaling: factor on q·k; 1 / √D by default.
        s_aux: H sinks, one for each head: a further score in each row's softmax, whose value is 0.
        cu_seq_lens_q, cu_seq_lens_k: bounds of packed documents, int (documents + 1,), as for FlashAttention.
            Beside the mask, a token sees only its own document.
        longca_context: of a model that `shard` has prepared; its masks replace `attention_mask`.
        options: arguments of other attention functions, which the mask already has, such as sliding_window.

    Returns:
        ((B, Tq, H, Dv), None): longca has no attention weights to return.

    Raises:
        UserError: dropout, softcap, a bias or attention weights are asked for, or lengths are inconsistent.
    """
    _refuse(module, dropout, softcap, position_bias, options)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    q, k, v = (x.transpose(1, 2) for x in _of_one_dtype(query, key, value))
    sinks = None if s_aux is None else s_aux.reshape(-1)
    if longca_context is not None:
        return longca_context.attention(module, q, k, v, scale, sinks), None
    if attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[1] == q.shape[2]:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))  # a mask for each head
    is_causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    table = as_table(attention_mask)
    if table is None or cu_seq_lens_q is not None:
        table = _table(q, k, attention_mask, is_causal, cu_seq_lens_q, cu_seq_lens_k)
    width = v.shape[-1]
    head_dim = max(q.shape[-1], v.shape[-1])
    q, k, v = (nn.functional.pad(x, (0, head_dim - x.shape[-1])) for x in (q, k, v))  # zeros change no result
    if torch.compiler.is_compiling():
        out, _ = traced_attention(q, k, v, table, scale, sinks)
    else:
        _warn_of_leaks(module, table, options.get("position_ids"))
        out = _eager(q, k, v, table, scale, sinks)
    return out[..., :width], None


def _of_one_dtype(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors; under autocast, rotary embeddings may give another dtype than projections."""
    if len({x.dtype for x in tensors}) == 1:
        return tensors
    device_type = tensors[0].device.type
    is_autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if is_autocast else tensors[-1].dtype
    return [x.to(dtype) for x in tensors]


def _eager(q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, sinks: Tensor | None) -> Tensor:
    masks = masks_of_table(table)
    default = math.isclose(scale * math.sqrt(q.shape[-1]), 1.0)
    return attention(
        q,
        k,
        v,
        masks[0] if len(masks) == 1 else masks,
        scale=None if default else scale,  # kernels other than `band` accept only the default
        sinks=sinks,
    )


def _refuse(
    module: nn.Module, dropout: float, softcap: float | None, position_bias: Any, options: dict[str, Any]
) -> None:
    layer = type(module).__name__
    if dropout:
        raise UserError(
            f"{layer} asks for dropout of attention weights, which longca does not have",
            todo=f"Set attention_dropout=0.0 in the model's config. {OTHER}",
        )
    if softcap is not None:
        raise UserError(f"{layer} asks for a softcap of scores, which longca does not have", todo=OTHER)
    if position_bias is not None:
        raise UserError(f"{layer} asks for a bias on scores, which longca does not have", todo=OTHER)
    if "block_table" in options or "read_index" in options:
        raise UserError("Continuous batching keeps keys in pages, which longca does not read", todo=OTHER)
    config = getattr(module, "config", None)
    if options.get("output_attentions", getattr(config, "output_attentions", False)):
        raise UserError(
            f"{layer} asks for attention weights, which longca does not compute",
            todo=f"Leave output_attentions out. {OTHER}",
        )


def _warn_of_leaks(module: nn.Module, table: Tensor, position_ids: Tensor | None) -> None:
    """Warns, in a model's first layer, if positions restart at a token that sees the one before it.

    Transformers makes no mask of documents beside a cache or a mask of padding, whatever computes attention.
    """
    if position_ids is None or position_ids.ndim != 2 or getattr(module, "layer_idx", None) != 0:
        return
    _, _, num_queries, num_keys, *_ = table[0].tolist()
    if position_ids.shape[1] != num_queries or num_queries != num_keys:
        return
    positions = position_ids[0].detach().cpu().numpy()
    restarts = np.flatnonzero((positions[1:] == 0) & (positions[:-1] > 0)) + 1
    if len(restarts):
        token = int(restarts[0])
        if masks_of_table(table)[0].crop((token, token + 1), (token - 1, token)).area:
            warnings.warn(
                f"position_ids restart at token {token}, and this token sees the one before it: "
                "Transformers made a mask without documents. For packed documents give cu_seq_lens_q, or "
                "use_cache=False and no attention_mask to a model whose masks are made of position_ids",
                stacklevel=3,
            )


@breaks_graph
def _table(
    q: Tensor,
    k: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool,
    cu_seq_lens_q: Tensor | None,
    cu_seq_lens_k: Tensor | None,
) -> Tensor:
    """The table of a mask that is not one yet, or of one that is restricted to packed documents."""
    num_queries = q.shape[1]
    num_keys = k.shape[1]
    if attention_mask is None:
        if is_causal and num_queries != num_keys:
            raise UserError(
                f"{num_queries} queries and {num_keys} keys without a mask are no causal attention",
                why="the position of the queries is unknown",
                todo="Give the mask that Transformers makes",
            )
        hi = 0 if is_causal else band.INF
        masks = [Mask(num_queries, num_keys, (band.make(0, num_queries, 0, num_keys, hi=hi),))]
    elif (table := as_table(attention_mask)) is not None:
        masks = list(masks_of_table(table))
    elif isinstance(attention_mask, BandAttentionMask):
        raise UserError(
            "This model does not hand longca's context to its layers, so that it cannot be sharded",
            todo="Train it on one rank",
        )
    elif attention_mask.ndim == 4:
        masks = list(masks_of_table(table_of_dense(attention_mask)))
    else:
        raise UserError(
            f"An attention mask of {attention_mask.ndim} dimensions is no mask of longca",
            todo='Load the model with attn_implementation="longca", or give a bool mask of 4 dimensions',
        )
    if cu_seq_lens_q is not None:
        masks = [documents_only(mask, len(q), cu_seq_lens_q, cu_seq_lens_k) for mask in masks]
    return mask_table(masks)


def documents_only(mask: Mask, batch: int, cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor | None) -> Mask:
    """The part of a mask that is inside packed documents.

    Raises:
        UserError: the documents are not those of one row of tokens, the same for queries and keys.
    """
    bounds = cu_seq_lens_q.detach().cpu().numpy().astype(np.int64).reshape(-1)
    others = bounds if cu_seq_lens_k is None else cu_seq_lens_k.detach().cpu().numpy().reshape(-1)
    if not np.array_equal(bounds, others):
        raise UserError(
            "cu_seq_lens_q and cu_seq_lens_k differ", todo="Give the same of both, or position_ids"
        )
    lengths = np.diff(bounds)
    if (
        batch != 1
        or (lengths < 0).any()
        or bounds[0] != 0
        or bounds[-1] != mask.seqlen_q
        or not _is_square(mask)
    ):
        raise UserError(
            f"cu_seq_lens_q from {bounds[0]} to {bounds[-1]} are no documents of {batch} rows of "
            f"{mask.seqlen_q} tokens",
            todo="Give one row, and bounds from 0 to its number of tokens",
        )
    documents = Mask.from_documents(lengths[lengths > 0], causal=False)
    return Mask(mask.seqlen_q, mask.seqlen_k, tuple(_inside(bands, documents.bands) for bands in mask.groups))


def _is_square(mask: Mask) -> bool:
    return mask.seqlen_q == mask.seqlen_k


def _inside(bands: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The parts of bands in squares on the diagonal, which are sorted and disjoint."""
    first = np.searchsorted(documents[:, band.Q1], bands[:, band.Q0], side="right")
    last = np.searchsorted(documents[:, band.Q0], bands[:, band.Q1])
    owner, document = spread(first, last)
    return band.normal(band.intersect(bands[owner], documents[document]))
