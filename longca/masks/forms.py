"""Masks as other libraries write them, and the bands that they are.

| form | library | read here | written by |
|---|---|---|---|
| `Varlen` | FlashAttention, cuDNN: packed sequences | `of_cu_seqlens` | `longca.lowering.varlen` |
| `FlashMaskColumns` | FlashMask: for each key, the queries that do not see it | `of_flashmask` | `longca.lowering.flashmask` |
| `AttnSlices` | MagiAttention: rectangles of four types | `of_slices` | `longca.lowering.attnslice` |
| `BlockMask` | FlexAttention: lists of blocks and a test of pairs | `of_block_mask` | `longca.lowering.flex` |
| a raster | SDPA: a bool for each pair | `of_dense` | `longca.lowering.dense` |

Arrays may be numpy arrays, tensors on any device, or lists. What cannot be a mask raises ValueError, and `refused` makes
a UserError of it.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core.errors import UserError, whole_number
from longca.masks import band
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.masks.segments import Bands

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Window = tuple[int, int]  # (left, right): -left <= j - i <= right; -1 for no bound (FlashAttention's convention)


@dataclass(frozen=True, eq=False)
class Varlen:
    """Segments of tokens that see no token of another segment, queries and keys alike."""

    cu_seqlens: np.ndarray  # int32 (segments + 1,), from 0 to the number of tokens
    max_seqlen: int
    window: Window  # inside a segment j - i is in [-left, right]


@dataclass(frozen=True, eq=False)
class FlashMaskColumns:
    """Ranges of queries i that do not see key j; the number of columns decides the form. `causal` hides rows i < j in addition.

    causal, 1: i >= LTS. causal, 2: LTS <= i < LTE. Not causal, 2 (LTS, UTE): i >= LTS or i < UTE.
    Not causal, 4 (LTS, LTE, UTS, UTE): LTS <= i < LTE or UTS <= i < UTE.
    """

    causal: bool
    columns: np.ndarray  # int32 (G, Sk, 1 | 2 | 4)

    @property
    def startend_row_indices(self) -> np.ndarray:
        """The columns as `flashmask_attention` takes them: int32 (1, G, Sk, 1 | 2 | 4)."""
        return self.columns[None]


class SliceType(IntEnum):
    """The visible pairs of a rectangle of lq × lk, with i and j counted from its corner."""

    FULL = 0
    CAUSAL = 1  # j <= i + lk - lq: the diagonal ends in the bottom right corner
    INVCAUSAL = 2  # j >= i: the diagonal starts in the top left corner
    BICAUSAL = 3  # both


@dataclass(frozen=True, eq=False)
class AttnSlices:
    """Disjoint rectangles with their types."""

    q_ranges: np.ndarray  # int32 (n, 2), half-open
    k_ranges: np.ndarray  # int32 (n, 2), half-open
    types: np.ndarray  # int32 (n,) of SliceType


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turns a ValueError about what a user gave into an error for the user.

    Args:
        what: it, with its article: "This window".
    """
    try:
        yield
    except ValueError as error:
        verb = "are" if what.startswith("These") else "is"
        raise UserError(f"{what} {verb} no mask", why=str(error)) from None


def lowered(form: str, place: str, mask: Bands, *arguments: Any) -> Any:
    """A mask in another library's form.

    Lowerings stand above masks. So they are found by name, as plug-ins are: what a mask is does not depend on them.

    Args:
        form: its name, for errors.
        place: the function of `longca.lowering` that writes it, as "module.function".

    Raises:
        UserError: the form cannot hold the mask.
    """
    module, _, function = place.partition(".")
    write = getattr(importlib.import_module(f"longca.lowering.{module}"), function)
    try:
        return write(mask, *arguments)
    except ValueError as error:
        raise UserError(f"{form} cannot hold {mask!r}", why=str(error)) from None
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for a host without memory
        if "memory" not in str(error):
            raise
        raise UserError(f"{form} of {mask!r} does not fit into memory", todo="Take a form that holds less than each pair") from None


def whole_numbers(values: Any, what: str) -> np.ndarray:
    """The values as an int64 array. Raises ValueError where they are no whole numbers."""
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except ValueError:
        raise ValueError(f"{what} must be whole numbers, and they are lists of different lengths") from None
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, and they are {_kind(array, values)}")
    return array.astype(np.int64)


def _kind(array: np.ndarray, values: Any) -> str:
    """What an array of a user holds, in a word."""
    return {"U": "text", "S": "text", "b": "bool", "O": type(values).__name__}.get(array.dtype.kind, str(array.dtype))


def of_windows(seqlen: int, windows: tuple[Any, ...]) -> list[np.ndarray]:
    """The band of each window over all tokens."""
    if not windows:
        raise ValueError("give at least one window, such as (1023, 0)")
    [first, *_] = windows
    if isinstance(first, (list, tuple)) and first and all(isinstance(one, (list, tuple)) for one in first):
        given = ", ".join(str(tuple(one)) for one in first)
        raise ValueError(f"each window is an argument of its own: give from_windows({seqlen}, {given})")
    if len(windows) == 2 and all(hasattr(one, "__index__") for one in windows):
        raise ValueError(f"a window is a pair: give from_windows({seqlen}, {windows})")
    return [of_window(seqlen, seqlen, window) for window in windows]


def of_window(seqlen_q: int, seqlen_k: int, window: Window) -> np.ndarray:
    """The band of one window over all tokens."""
    lo, hi = _offsets(window)
    return band.make(0, seqlen_q, 0, seqlen_k, lo, hi)


def of_cu_seqlens(cu_seqlens: np.ndarray, causal: bool, window: Window) -> np.ndarray:
    """The bands of packed sequences of one window; `causal` lets no token see a later one."""
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens[0] != 0 or (np.diff(cu_seqlens) < 0).any():
        raise ValueError("cu_seqlens must begin with 0, never fall, and end with the number of tokens")
    lo, hi = _offsets(window)
    start, end = cu_seqlens[:-1], cu_seqlens[1:]
    return band.make(start, end, start, end, lo, min(hi, 0) if causal else hi)


def of_flashmask(columns: Any, causal: bool, seqlen_q: int | None) -> tuple[tuple[np.ndarray, ...], int, int]:
    """(bands of each head group, queries, keys).

    Args:
        columns: `startend_row_indices`, (1, G, Sk, n), (G, Sk, n) or (Sk, n).
        seqlen_q: number of queries; as many as keys if None.
    """
    table = whole_numbers(columns, "startend_row_indices")
    if table.ndim == 4 and len(table) == 1:
        table = table[0]
    table = table[None] if table.ndim == 2 else table
    if table.ndim != 3 or table.shape[2] not in ((1, 2) if causal else (2, 4)):
        raise ValueError(f"startend_row_indices must be (1, heads, keys, {'1 or 2' if causal else '2 or 4'}) where causal is {causal}, "
                         f"and they are {np.shape(columns)}")
    seqlen_k = table.shape[1]
    num_queries = seqlen_k if seqlen_q is None else whole_number("Argument 'seqlen_q'", seqlen_q)
    return tuple(_of_hidden(_hidden(of_group, causal, num_queries), num_queries) for of_group in table), num_queries, seqlen_k


def of_slices(q_ranges: Any, k_ranges: Any, types: Any) -> np.ndarray:
    """The bands of attention slices: one for each that is not empty."""
    known = ", ".join(f"{kind.value} for {kind.name}" for kind in SliceType)
    q, k, kind = (whole_numbers(values, name) for values, name in
                  ((q_ranges, "q_ranges"), (k_ranges, "k_ranges"), (types, f"types ({known})")))
    for name, ranges in (("q_ranges", q), ("k_ranges", k)):
        if ranges.size % 2 or (ranges.ndim > 1 and ranges.shape[-1] != 2):
            raise ValueError(f"{name} must be (n, 2), a start and an end each, and these are {ranges.shape}")
    q, k, kind = q.reshape(-1, 2), k.reshape(-1, 2), kind.reshape(-1)
    if not len(q) == len(k) == len(kind):
        raise ValueError(f"slices must be as many q_ranges as k_ranges and types, and these are {len(q)}, {len(k)} and {len(kind)}")
    strange = kind[~np.isin(kind, list(SliceType))]
    if len(strange):
        raise ValueError(f"a type of slice is {known}, and {strange[0]} is none of them")
    hi = np.where(kind & SliceType.CAUSAL, k[:, 1] - q[:, 1], INF)
    lo = np.where(kind & SliceType.INVCAUSAL, k[:, 0] - q[:, 0], -INF)
    return band.make(q[:, 0], q[:, 1], k[:, 0], k[:, 1], lo, hi)


def of_dense(raster: Any) -> tuple[tuple[np.ndarray, ...], int, int]:
    """(bands of each head group, queries, keys) of a bool (Sq, Sk) or (G, Sq, Sk); True is visible."""
    try:
        visible = np.asarray(raster.detach().cpu() if hasattr(raster, "detach") else raster)
    except ValueError:
        raise ValueError("a raster must be bool (queries, keys), and its rows are of different lengths") from None
    if visible.dtype != bool or visible.ndim not in (2, 3):
        raise ValueError("a raster must be bool (queries, keys) or (groups, queries, keys), and it is "
                         f"{_kind(visible, raster)}{f' {visible.shape}' if visible.ndim else ''}")
    groups = visible if visible.ndim == 3 else visible[None]
    return tuple(band.of_runs(*_runs(group)) for group in groups), *visible.shape[-2:]


def of_block_mask(block_mask: BlockMask) -> tuple[tuple[np.ndarray, ...] | BlockGrid, int, int]:
    """(bands of each head group or a grid of blocks, queries, keys).

    Whole blocks alone are a grid. Where blocks are tested pair by pair, `mask_mod` is called with tensors of indices that broadcast.
    Neighbouring heads that see the same are one head group.
    """
    if not hasattr(block_mask, "seq_lengths"):
        raise ValueError(f"it must be torch's BlockMask, and it is {type(block_mask).__name__}; from_dense takes a bool tensor")
    seqlen_q, seqlen_k = block_mask.seq_lengths
    size_q, size_k = block_mask.BLOCK_SIZE
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is None:
        full = np.zeros_like(partial)
    else:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    batch, num_heads = partial.shape[:2]
    if batch != 1:
        raise ValueError(f"a mask is that of one batch entry, and this BlockMask has {batch}: take one of them with block_mask[entry]")
    partial, full = partial[0], full[0]
    if not partial.any():
        visible = full[::num_heads // _num_distinct([blocks.tobytes() for blocks in full])]
        bounds = (np.minimum(np.arange(num + 1) * size, length)[None].repeat(len(visible), 0)
                  for num, size, length in zip(full.shape[1:], (size_q, size_k), (seqlen_q, seqlen_k), strict=True))
        return BlockGrid(visible, *bounds), seqlen_q, seqlen_k
    heads = [band.of_runs(*_runs_of_blocks(block_mask, head, partial[head], full[head])) for head in range(num_heads)]
    num_groups = _num_distinct([bands.tobytes() for bands in heads])
    return tuple(heads[::num_heads // num_groups]), seqlen_q, seqlen_k


def _offsets(window: Window) -> tuple[int, int]:
    try:
        left, right = map(operator.index, window)
    except (TypeError, ValueError):
        left = right = -2
    if min(left, right) < -1:
        raise ValueError(f"a window is (left, right), whole numbers, each at least 0, or -1 for no bound; it is {window!r}")
    return (-INF if left < 0 else -left), (INF if right < 0 else right)


def _hidden(table: np.ndarray, causal: bool, seqlen_q: int) -> np.ndarray:
    """The ranges of queries that do not see each key, (Sk, n, 2); empty ones are (0, 0)."""
    key = np.arange(len(table))
    beginning, end = np.zeros(len(table), dtype=np.int64), np.full(len(table), seqlen_q)
    if table.shape[1] == 1:
        ranges = [(table[:, 0], end)]
    elif causal:
        ranges = [(table[:, 0], table[:, 1])]
    elif table.shape[1] == 2:
        ranges = [(table[:, 0], end), (beginning, table[:, 1])]
    else:
        ranges = [(table[:, 0], table[:, 1]), (table[:, 2], table[:, 3])]
    if causal:
        ranges.append((beginning, np.minimum(key, seqlen_q)))
    hidden = np.clip(np.stack([np.stack(pair, axis=1) for pair in ranges], axis=1), 0, seqlen_q)
    hidden[hidden[..., 0] >= hidden[..., 1]] = 0
    return hidden


def _of_hidden(hidden: np.ndarray, seqlen_q: int) -> np.ndarray:
    """The bands of what is left of each key's queries."""
    hidden = np.take_along_axis(hidden, np.argsort(hidden[..., :1], axis=1), axis=1)
    reached = np.maximum.accumulate(hidden[..., 1], axis=1)
    start = np.pad(reached, ((0, 0), (1, 0)))
    end = np.pad(hidden[..., 0], ((0, 0), (0, 1)), constant_values=seqlen_q)
    key, slot = np.nonzero(start < end)
    return band.normal(band.transpose(band.of_runs(key, start[key, slot], end[key, slot])))


def _runs(visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, start, end) of each run of True in the rows of a raster, in order."""
    step = np.diff(np.pad(visible, ((0, 0), (1, 1))).view(np.int8), axis=1)
    row, start = np.nonzero(step == 1)
    return row, start, np.nonzero(step == -1)[1]


def _listed(counts: Any, indices: Any) -> np.ndarray:
    """Bool (batch, heads, q-blocks, k-blocks) from the lists of blocks."""
    counts, indices = whole_numbers(counts, "counts"), whole_numbers(indices, "indices")
    chosen = np.zeros(indices.shape, dtype=bool)
    used = np.arange(indices.shape[-1]) < counts[..., None]
    chosen[(*np.nonzero(used)[:3], indices[used])] = True
    return chosen


def _runs_of_blocks(block_mask: BlockMask, head: int, partial: np.ndarray, full: np.ndarray) -> tuple[np.ndarray, ...]:
    """(row, start, end) of each run of visible keys of one head, in order."""
    seqlen_q, seqlen_k = block_mask.seq_lengths
    rows, starts, ends = zip(*_rows_of_blocks(block_mask, head, partial, full), strict=True)
    row, start, end = (np.concatenate(parts) for parts in (rows, starts, ends))
    inside = (row < seqlen_q) & (start < seqlen_k)
    return row[inside], start[inside], np.minimum(end, seqlen_k)[inside]


def _rows_of_blocks(block_mask: BlockMask, head: int, partial: np.ndarray, full: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The same for each row of blocks. Only columns of blocks that it sees are looked at, with a gap where some are left out."""
    (seqlen_q, seqlen_k), (size_q, size_k) = block_mask.seq_lengths, block_mask.BLOCK_SIZE
    index = block_mask.kv_indices  # makes tensors of indices on its device: this layer does without torch
    zero = index.new_zeros(())
    for number in range(len(partial)):
        blocks = np.flatnonzero(partial[number] | full[number])
        row = np.arange(number * size_q, (number + 1) * size_q)
        key = blocks[:, None] * size_k + np.arange(size_k)
        seen = np.zeros((size_q, len(blocks), size_k + 1), dtype=bool)  # the last column of a block is the gap
        seen[..., :-1] = full[number, blocks][None, :, None]
        tested = np.flatnonzero(partial[number, blocks])
        if len(tested):
            q_idx = index.new_tensor(np.minimum(row, seqlen_q - 1))[:, None]
            kv_idx = index.new_tensor(np.minimum(key[tested].ravel(), seqlen_k - 1))[None]
            answer = block_mask.mask_mod(zero, zero + head, q_idx, kv_idx).expand(size_q, kv_idx.shape[1])
            seen[:, tested, :-1] = answer.cpu().numpy().reshape(size_q, len(tested), size_k)
        seen[..., :-1] &= (key < seqlen_k)[None]
        joined = np.flatnonzero(np.diff(blocks) == 1)
        seen[:, joined, -1] = seen[:, joined, -2] & seen[:, joined + 1, 0]
        which, start, end = _runs(seen.reshape(size_q, -1))
        start_block, start_key = np.divmod(start, size_k + 1)
        end_block, end_key = np.divmod(end - 1, size_k + 1)
        yield row[which], blocks[start_block] * size_k + start_key, blocks[end_block] * size_k + end_key + 1


def _num_distinct(heads: list[bytes]) -> int:
    """The fewest groups of equally many neighbouring heads such that all of a group see the same."""
    count = len(heads)
    return next(num for num in range(1, count + 1)
                if count % num == 0 and all(heads[head] == heads[head - head % (count // num)] for head in range(count)))
