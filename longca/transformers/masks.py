"""Masks of Transformers as tables of bands.

Transformers describes a mask by functions of (batch, head, query, key). Those of its own module are read:
they are a range of offsets inside consecutive segments of the sequence, so that a mask costs O(tokens). Any
other function is evaluated for each pair, exactly as by "sdpa".
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# Transformers is an extra: it need not be installed where types are checked.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._guards import TracingContext

from longca.core import UserError
from longca.dispatch.torch_op import COLUMNS, mask_table
from longca.masks import Mask, band, breaks_graph

MOST_PAIRS = 1 << 28  # of a mask whose function is evaluated for each pair
MODULE = "transformers.masking_utils"
NUM_DIMENSIONS = 4  # of a mask that Transformers passes on to layers as it is
OTHER = 'Set another attn_implementation, such as "eager"'


@breaks_graph
def longca_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor:
    """The table of a model's masks for `longca_attention`, as Transformers asks for it in each forward pass.

    It is (1, 1, 1 + n, 8), of `longca.dispatch.torch_op`: Transformers passes on what has four dimensions,
    and takes what has two for padding.

    Args:
        q_offset, kv_offset: positions of the first query and of the first key.
        mask_function: of (batch, head, query, key); causal if None.
        attention_mask: bool (batch, keys), False for padding.
        options: those of other attention functions; they do not change the mask.

    Raises:
        UserError: the function must be evaluated for more than `MOST_PAIRS` pairs.
    """
    from transformers.masking_utils import causal_mask_function

    function = causal_mask_function if mask_function is None else mask_function
    span = _Span(int(q_offset), int(q_length), int(kv_offset), int(kv_length))
    padding = _visible_keys(attention_mask, span)
    readings = [read(function, entry, span.start, span.stop) for entry in range(batch_size)]
    if any(reading is None for reading in readings):
        return _evaluated(batch_size, span, function, attention_mask, use_vmap, device)
    masks = [
        _mask(reading, span, None if padding is None else padding[entry])
        for entry, reading in enumerate(readings)
        if reading is not None
    ]
    return as_attention_mask(mask_table(masks))


@dataclass(frozen=True)
class _Span:
    """The queries and keys of a mask, in positions of the whole sequence."""

    q_start: int
    num_queries: int
    k_start: int
    num_keys: int

    @property
    def start(self) -> int:
        return min(self.q_start, self.k_start)

    @property
    def stop(self) -> int:
        return max(self.q_start + self.num_queries, self.k_start + self.num_keys)


@dataclass(frozen=True)
class Reading:
    """A mask function: query i sees key j iff lo <= j - i <= hi and no segment opens between them."""

    lo: int = -band.INF
    hi: int = band.INF
    opens: np.ndarray | None = None  # bool, for each position: a segment begins there; None: one segment

    def and_offsets(self, lo: int = -band.INF, hi: int = band.INF) -> Reading:
        return replace(self, lo=max(self.lo, lo), hi=min(self.hi, hi))

    def and_segments(self, ids: np.ndarray) -> Reading:
        """Restricted to pairs of equal ids; equal ids are consecutive."""
        opens = np.diff(ids, prepend=ids[:1]) != 0
        return replace(self, opens=opens if self.opens is None else self.opens | opens)


def read(function: Callable[..., Any], entry: int, start: int, stop: int) -> Reading | None:
    """The meaning of a mask function for one entry of the batch at positions start..stop; None if it is not
    made of functions that are known here."""
    return _read(function, entry, np.arange(start, stop))


def _read(function: Callable[..., Any], entry: int, positions: np.ndarray) -> Reading | None:
    """`positions`: the number that the function is called with, for each token."""
    reading = Reading()
    terms = _terms(function)
    names = [_name(term) for term in terms]
    if "remap_positions_for_packed_sequence" in names and "packed_sequence_mask_function" not in names:
        return None  # a reading of positions that restart holds inside documents alone
    for term in terms:
        known = READERS.get(_name(term))
        other = None if known is None else known(reading, _closure(term), entry, positions)
        if other is None:
            return None
        reading = other
    return reading


def _terms(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions whose conjunction this one is."""
    if _name(function) != "and_masks":
        return [function]
    return [term for part in _closure(function)["mask_functions"] for term in _terms(part)]


def _name(function: Callable[..., Any]) -> str:
    """The name of a mask function of Transformers, or of the function that made it; "" for others."""
    if getattr(function, "__module__", None) != MODULE:
        return ""
    return getattr(function, "__qualname__", "").partition(".")[0]


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _remapped(reading: Reading, values: dict[str, Any], entry: int, tokens: np.ndarray) -> Reading | None:
    """The function at the positions of packed documents. Each document begins a segment, since the function
    is read there alone: Transformers restricts it to documents by another term."""
    positions = _row(values["position_ids"], entry)
    if len(positions) != len(tokens):
        return None
    inner = _read(values["mask_function"], entry, positions)
    if inner is None:
        return None
    documents = np.cumsum(np.diff(positions, prepend=positions[:1] - 1) != 1)
    merged = reading.and_offsets(inner.lo, inner.hi).and_segments(documents)
    return merged if inner.opens is None else replace(merged, opens=merged.opens | inner.opens)


def _packed(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading | None:
    ids = _row(values["packed_sequence_mask"], entry)
    if len(ids) != len(positions) or (np.diff(ids) < 0).any():
        return None
    return reading.and_segments(ids)


def _chunked(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading:
    left = int(values["left_padding"][entry])
    return reading.and_segments((positions - left) // int(values["chunk_size"]))


def _window(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading:
    return reading.and_offsets(lo=1 - int(values["sliding_window"]))


def _both_sides(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading:
    window = int(values["sliding_window"])
    return reading.and_offsets(-window, window)


def _causal(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading:
    return reading.and_offsets(hi=0)


def _all(reading: Reading, values: dict[str, Any], entry: int, positions: np.ndarray) -> Reading:
    return reading


READERS: dict[str, Callable[[Reading, dict[str, Any], int, np.ndarray], Reading | None]] = {
    "bidirectional_mask_function": _all,
    "causal_mask_function": _causal,
    "chunked_overlay": _chunked,
    "packed_sequence_mask_function": _packed,
    "remap_positions_for_packed_sequence": _remapped,
    "sliding_window_bidirectional_overlay": _both_sides,
    "sliding_window_overlay": _window,
}
"""by the name of a mask function, or of the function that made it: its restriction of a reading"""


def _row(x: Tensor, entry: int) -> np.ndarray:
    return x[entry].detach().cpu().numpy()


def _visible_keys(attention_mask: Tensor | None, span: _Span) -> np.ndarray | None:
    """Bool (batch, keys): the keys that are no padding; None if there is no padding."""
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise UserError(
            f"An attention mask of {attention_mask.ndim} dimensions is none of padding",
            todo="Give one of (batch, keys), or a bool mask of (batch, 1, queries, keys)",
        )
    whole = attention_mask.detach().bool().cpu().numpy()[:, span.k_start : span.k_start + span.num_keys]
    visible = np.pad(whole, ((0, 0), (0, span.num_keys - whole.shape[1])))
    return None if visible.all() else visible


def _mask(reading: Reading, span: _Span, visible: np.ndarray | None) -> Mask:
    start, stop = np.array([span.start]), np.array([span.stop])
    if reading.opens is not None:
        inner = np.flatnonzero(reading.opens[1:]) + span.start + 1
        start, stop = np.append(start, inner), np.append(inner, stop)
    q_start, q_stop, k_start, k_stop = (
        np.clip(bound, first, first + count)
        for first, count in ((span.q_start, span.num_queries), (span.k_start, span.num_keys))
        for bound in (start, stop)
    )
    bands = band.make(q_start, q_stop, k_start, k_stop, reading.lo, reading.hi)
    bands = band.normal(band.shift(bands, -span.q_start, -span.k_start))
    if visible is not None:
        edges = np.flatnonzero(np.diff(visible, prepend=False, append=False)).reshape(-1, 2)
        runs = np.array([[0, span.num_queries, *edge, -band.INF, band.INF] for edge in edges.tolist()])
        bands = band.normal(band.intersect(bands[:, None], runs.reshape(1, -1, 6)).reshape(-1, 6))
    return Mask(span.num_queries, span.num_keys, (bands,))


def _evaluated(
    batch_size: int,
    span: _Span,
    function: Callable[..., Any],
    attention_mask: Tensor | None,
    use_vmap: bool,
    device: torch.device | str,
) -> Tensor:
    from transformers.masking_utils import sdpa_mask

    num_pairs = batch_size * span.num_queries * span.num_keys
    if num_pairs > MOST_PAIRS:
        raise UserError(
            f"This model's mask has {num_pairs:,} pairs, and longca does not know its function",
            why=f"it must be evaluated for each pair, for {MOST_PAIRS:,} at most",
            todo="Give shorter sequences, or set another attn_implementation",
        )
    visible = sdpa_mask(
        batch_size=batch_size,
        q_length=span.num_queries,
        kv_length=span.num_keys,
        q_offset=span.q_start,
        kv_offset=span.k_start,
        mask_function=function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    assert visible is not None  # only where a mask may be left out, which it may not
    return as_attention_mask(table_of_dense(visible))


class BandAttentionMask(Tensor):
    """A mask that a model hands on to its layers, for `longca_attention` alone; int64, of four dimensions.

    Its numbers are no scores. A model that computes with its mask would go wrong, silently where the shapes
    happen to fit: every result that is not such a mask again is refused.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # a model asks for its size only to compare it with scores; torch.compile asks it of any tensor
        asks_size = func is Tensor.size and TracingContext.try_get() is None
        others = any(isinstance(x, Tensor) and not isinstance(x, cls) for x in args)
        result = None if asks_size or others else super().__torch_function__(func, types, args, kwargs or {})
        is_other = isinstance(result, Tensor) and (
            result.dtype != torch.int64
            or result.ndim != NUM_DIMENSIONS
            or (isinstance(args[0], Tensor) and result.shape[-1] != args[0].shape[-1])  # padded or cut
        )
        if asks_size or others or is_other:
            raise UserError(
                "This model computes with its attention mask outside of attention functions",
                why="longca's mask is a table of bands, which has no entry for each pair of tokens",
                todo=OTHER,
            )
        return result


def as_attention_mask(table: Tensor) -> Tensor:
    """A table in the form in which a model passes it on to its layers."""
    copied = table[None, None].clone()  # no view: torch.compile asks a view for its base, which is no mask
    return copied.as_subclass(BandAttentionMask)


def as_table(attention_mask: Tensor | None) -> Tensor | None:
    """The inverse of `as_attention_mask`; None for other masks."""
    if not isinstance(attention_mask, BandAttentionMask):
        return None
    table = plain(attention_mask)
    return table[0, 0] if table.shape[-1] == COLUMNS else None


def plain(attention_mask: Tensor) -> Tensor:
    """The numbers of a `BandAttentionMask`."""
    with torch._C.DisableTorchFunctionSubclass():
        return attention_mask.as_subclass(Tensor)


def table_of_dense(visible: Tensor) -> Tensor:
    """The table of a mask that is given for each pair.

    Args:
        visible: bool (batch, 1 or heads, queries, keys), or a float mask that is added to scores: 0 where
            visible, and −inf or its dtype's least value where hidden.

    Raises:
        UserError: the numbers are neither.
    """
    if visible.dtype.is_floating_point:
        hidden = visible <= torch.finfo(visible.dtype).min
        if not (hidden | (visible == 0)).all():
            raise UserError(
                "A 4-D attention mask has numbers other than 0 and −inf",
                why="longca shows or hides a pair, and adds nothing to its score",
                todo="Give a bool mask, or set another attn_implementation",
            )
        visible = ~hidden
    elif visible.dtype != torch.bool:
        raise UserError(f"A 4-D attention mask is of dtype {visible.dtype}", todo="Give a bool or float mask")
    return mask_table([Mask.from_dense(entry[0] if len(entry) == 1 else entry) for entry in visible.cpu()])
