"""FlexAttention's BlockMask: lists of blocks and a test of pairs."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from longca.core import whole_number
from longca.masks import band
from longca.masks.band import spread
from longca.masks.forms.values import runs, whole_numbers
from longca.masks.grid import BlockGrid

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class _PairTest(Protocol):
    """`longca.lowering.evaluated.PairTest`."""

    def most_pairs(self) -> int: ...
    def visible(self, corners: np.ndarray, height: int, width: int) -> np.ndarray: ...


def of_block_mask(
    block_mask: BlockMask, batch: int | None, head: int | None
) -> tuple[tuple[np.ndarray, ...] | BlockGrid, int, int]:
    """(bands of each head group or a grid of blocks, queries, keys).

    Full blocks, and all blocks of a BlockMask without a `mask_mod`, are entirely visible; if there are no
    others, the result is a grid. Partial blocks are evaluated pair by pair. Neighbouring heads with equal
    masks form one head group.

    Args:
        batch: the entry of the batch; may be None where there is one.
        head: the head; None for all.
    """
    if not hasattr(block_mask, "seq_lengths"):
        raise ValueError(
            f"it must be torch's BlockMask, and it is {type(block_mask).__name__}; "
            "from_dense takes a bool tensor"
        )
    seqlens = seqlen_q, seqlen_k = _two_numbers("seq_lengths", block_mask.seq_lengths)
    block_size = _two_numbers("BLOCK_SIZE", block_mask.BLOCK_SIZE)
    if min(block_size) < 1:
        raise ValueError(f"a block has at least 1 query and key, and its BLOCK_SIZE is {block_size}")
    if min(seqlens) < 1:
        raise ValueError(
            f"a mask has at least 1 query and key, and this would have {seqlen_q} and {seqlen_k}"
        )
    num_entries, num_heads = _leading(block_mask.kv_num_blocks)
    entry = _chosen("batch", "batch entry", batch, num_entries)
    if entry is None:
        raise ValueError(
            f"it has {num_entries} batch entries, and a mask is that of one: give "
            f"from_block_mask(block_mask, "
            f"batch=0) to batch={num_entries - 1}; longca.attention takes a list of masks, one an entry"
        )
    only = _chosen("head", "head", head, num_heads)
    heads = range(num_heads) if only is None else range(only, only + 1)
    full, partial = _blocks(block_mask, entry, heads)
    # imported by name: lowerings import masks, and this one imports torch
    evaluated = importlib.import_module("longca.lowering.evaluated")
    if evaluated.is_noop(block_mask.mask_mod):
        full, partial = full | partial, np.zeros_like(partial)
    if not partial.any():
        visible = full[:: len(full) // _num_distinct([blocks.tobytes() for blocks in full])]
        bounds = (
            np.minimum(np.arange(num + 1) * size, length)[None].repeat(len(visible), 0)
            for num, size, length in zip(full.shape[1:], block_mask.BLOCK_SIZE, seqlens, strict=True)
        )
        return BlockGrid(visible, *bounds), seqlen_q, seqlen_k
    groups = []
    for number, whole, tested in zip(heads, full, partial, strict=True):
        test = evaluated.PairTest(block_mask.mask_mod, entry, number, seqlens, block_mask.kv_indices.device)
        stripes = list(_stripes(test, whole, tested, block_mask.BLOCK_SIZE, seqlens))
        groups.append(band.of_runs(*(np.concatenate(parts) for parts in zip(*stripes, strict=True))))
    num_groups = _num_distinct([bands.tobytes() for bands in groups])
    return tuple(groups[:: len(groups) // num_groups]), seqlen_q, seqlen_k


def _two_numbers(name: str, pair: Any) -> tuple[int, int]:
    """A pair of whole numbers, of queries and of keys."""
    try:
        of_q, of_k = map(operator.index, pair)
    except (TypeError, ValueError):
        raise ValueError(f"its {name} must be two whole numbers, and it is {pair!r}") from None
    return of_q, of_k


def _chosen(argument: str, what: str, index: int | None, count: int) -> int | None:
    """The index, or 0 for a single entry; None if there are several entries to choose from."""
    if index is None:
        return 0 if count == 1 else None
    number = whole_number(f"Argument '{argument}'", index, least=0)
    if number >= count:
        named = f"they are 0 to {count - 1}" if count > 1 else "there is one, 0, which stands for all of them"
        raise ValueError(f"there is no {what} {number}: {named}")
    return number


def _leading(counts: Any) -> tuple[int, int]:
    """The numbers of batch entries and heads of the lists, 1 for a missing axis."""
    num_entries, num_heads = (1, 1, *counts.shape[:-1])[-2:]
    return num_entries, num_heads


def _blocks(block_mask: BlockMask, entry: int, heads: range) -> tuple[np.ndarray, np.ndarray]:
    """The full and the partial blocks of one batch entry, each bool (heads, q-blocks, k-blocks)."""
    partial = _listed(block_mask, block_mask.kv_num_blocks, block_mask.kv_indices, entry, heads)
    if block_mask.full_kv_num_blocks is None:
        return np.zeros_like(partial), partial
    leading = [_leading(counts) for counts in (block_mask.kv_num_blocks, block_mask.full_kv_num_blocks)]
    if leading[0] != leading[1]:
        raise ValueError(f"its lists are for {leading[0]} and {leading[1]} batch entries and heads")
    full = _listed(block_mask, block_mask.full_kv_num_blocks, block_mask.full_kv_indices, entry, heads)
    if (full & partial).any():
        raise ValueError("its lists name one block as full and as partial, and torch would count it twice")
    return full, partial


def _listed(block_mask: BlockMask, counts: Any, indices: Any, entry: int, heads: range) -> np.ndarray:
    """Bool (heads, q-blocks, k-blocks) from lists of blocks. Lists beyond the last query are ignored."""
    if not 1 <= counts.ndim <= 3 or indices.ndim != counts.ndim + 1 or indices.shape[:-1] != counts.shape:
        raise ValueError(
            "its lists must be (batch, heads, q-blocks, k-blocks), and they are "
            f"{tuple(indices.shape)} with counts {tuple(counts.shape)}"
        )
    seqlen_q, seqlen_k = block_mask.seq_lengths
    size_q, size_k = block_mask.BLOCK_SIZE
    num_q = -(-seqlen_q // size_q)
    num_k = -(-seqlen_k // size_k)
    if counts.shape[-1] < num_q:
        raise ValueError(
            f"its lists are for {counts.shape[-1]} × {size_q} queries, and its seq_lengths say {seqlen_q}, "
            "as those of a slice of queries do: give the whole BlockMask, and cut its mask with "
            "crop(queries, keys)"
        )
    leading = _leading(counts)
    of_heads = slice(heads.start, heads.stop)
    counts = whole_numbers(counts.reshape(*leading, -1)[entry, of_heads, :num_q], "counts of blocks")
    indices = indices.reshape(*leading, *indices.shape[-2:])[entry, of_heads, :num_q]
    indices = whole_numbers(indices, "indices of blocks")
    used = np.arange(indices.shape[-1]) < counts[..., None]
    named = indices[used]
    strange = named[(named < 0) | (named >= num_k)]
    if len(strange):
        raise ValueError(
            f"its lists name k-block {strange[0]}, and {seqlen_k} keys are blocks 0 to {num_k - 1} of "
            f"{size_k}"
        )
    chosen = np.zeros((*counts.shape, num_k), dtype=bool)
    chosen[(*np.nonzero(used)[:2], named)] = True
    if (chosen.sum(axis=-1) != counts).any():
        raise ValueError("its lists name a block twice, or fewer blocks than they count")
    return chosen


def _stripes(
    test: _PairTest,
    full: np.ndarray,
    partial: np.ndarray,
    block_size: tuple[int, int],
    seqlens: tuple[int, int],
) -> Iterator[tuple[np.ndarray, ...]]:
    """(row, start, end) of each run of visible keys, in order, for one stripe of rows after another.

    A stripe lies in one row of blocks. It has few enough rows that its partial blocks are evaluated in
    bounded memory.
    """
    seqlen_q, seqlen_k = seqlens
    size_q = min(block_size[0], seqlen_q)
    size_k = min(block_size[1], seqlen_k)
    most_pairs = test.most_pairs()
    width = min(size_k, most_pairs)
    height = min(size_q, max(most_pairs // width, 1))
    blocks, first_row = spread(np.zeros(len(full), dtype=np.int64), np.full(len(full), -(-size_q // height)))
    first_row = blocks * size_q + first_row * height
    inside = first_row < seqlen_q
    blocks = blocks[inside]
    first_row = first_row[inside]
    across = np.arange(0, size_k, width)
    num_tiles = partial.sum(axis=1)[blocks] * len(across)
    at_once = max(most_pairs // (height * width), 1)
    batch = np.cumsum(num_tiles) // at_once
    for stripes in np.split(np.arange(len(blocks)), np.flatnonzero(np.diff(batch)) + 1):
        owner, tested = np.nonzero(partial[blocks[stripes]])
        tile_rows = first_row[stripes][owner][:, None]
        tile_keys = tested[:, None] * size_k + across
        corners = np.stack(np.broadcast_arrays(tile_rows, tile_keys), axis=-1)
        calls = np.split(corners.reshape(-1, 2), range(at_once, corners[..., 0].size, at_once))
        answers = [test.visible(corners, height, width) for corners in calls if len(corners)]
        tiles = np.concatenate(answers or [np.zeros((0, height, width), dtype=bool)])
        tiles = tiles.reshape(-1, len(across), height, width).swapaxes(1, 2)
        tiles = tiles.reshape(-1, height, len(across) * width)[..., :size_k]
        for number, stripe in enumerate(stripes.tolist()):
            block = int(blocks[stripe])
            row = int(first_row[stripe])
            end = min(row + height, (block + 1) * size_q, seqlen_q)
            own = tiles[owner == number]
            yield _runs_of_stripe(row, end, full[block], partial[block], own, size_k, seqlen_k)


def _runs_of_stripe(
    first: int, end: int, full: np.ndarray, partial: np.ndarray, tiles: np.ndarray, size_k: int, seqlen_k: int
) -> tuple[np.ndarray, ...]:
    """(row, start, end) of each run of visible keys in rows first..end.

    Only columns of listed blocks are read, with a gap between blocks that are not adjacent.

    Args:
        full, partial: bool (k-blocks,).
        tiles: bool (partial blocks, at least end - first, size_k).
    """
    blocks = np.flatnonzero(partial | full)
    seen = np.zeros((end - first, len(blocks), size_k + 1), dtype=bool)  # a block's last column is the gap
    seen[..., :-1] = full[blocks][:, None]
    seen[:, partial[blocks], :-1] = tiles[:, : end - first].swapaxes(0, 1)
    seen[..., :-1] &= blocks[:, None] * size_k + np.arange(size_k) < seqlen_k
    joined = np.flatnonzero(np.diff(blocks) == 1)
    seen[:, joined, -1] = seen[:, joined, -2] & seen[:, joined + 1, 0]
    row, start, stop = runs(seen.reshape(end - first, -1))
    start_block, start_key = np.divmod(start, size_k + 1)
    stop_block, stop_key = np.divmod(stop - 1, size_k + 1)
    return first + row, blocks[start_block] * size_k + start_key, blocks[stop_block] * size_k + stop_key + 1


def _num_distinct(heads: list[bytes]) -> int:
    """The smallest number of equal groups of neighbouring heads such that all heads of a group have the same
    mask."""
    count = len(heads)
    return next(
        num
        for num in range(1, count + 1)
        if count % num == 0
        and all(heads[head] == heads[head - head % (count // num)] for head in range(count))
    )
