"""FlexAttention's BlockMask: lists of blocks and a test of pairs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core.errors import whole_number
from longca.masks import band
from longca.masks.forms.values import runs, whole_numbers
from longca.masks.grid import BlockGrid
from longca.masks.ragged import spread

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from longca.lowering.evaluated import PairTest


def of_block_mask(block_mask: BlockMask, batch: int | None, head: int | None) -> tuple[tuple[np.ndarray, ...] | BlockGrid, int, int]:
    """(bands of each head group or a grid of blocks, queries, keys).

    Blocks that are full, or of a BlockMask without a `mask_mod`, are visible as they are; if there are no others, they are a grid. Partial
    blocks are evaluated pair by pair. Neighbouring heads that see the same are one head group.

    Args:
        batch, head: the entry of the batch, and the head; needed where there are several entries, and all heads if None.
    """
    if not hasattr(block_mask, "seq_lengths"):
        raise ValueError(f"it must be torch's BlockMask, and it is {type(block_mask).__name__}; from_dense takes a bool tensor")
    seqlens = seqlen_q, seqlen_k = block_mask.seq_lengths
    if min(seqlens) < 1:
        raise ValueError(f"a mask has at least 1 query and key, and this would have {seqlen_q} and {seqlen_k}")
    full, partial = _blocks(block_mask)
    entry = _chosen("batch", "batch entry", batch, len(full))
    if entry is None:
        raise ValueError(f"it has {len(full)} batch entries, and a mask is that of one: give from_block_mask(block_mask, batch=0) to "
                         f"batch={len(full) - 1}; longca.attention takes a list of masks, one an entry")
    number = _chosen("head", "head", head, full.shape[1])
    heads = range(full.shape[1]) if number is None else range(number, number + 1)
    full, partial = full[entry, heads.start:heads.stop], partial[entry, heads.start:heads.stop]
    evaluated = importlib.import_module("longca.lowering.evaluated")  # by name: it stands above masks, and imports torch
    if evaluated.is_noop(block_mask.mask_mod):
        full, partial = full | partial, np.zeros_like(partial)
    if not partial.any():
        visible = full[::len(full) // _num_distinct([blocks.tobytes() for blocks in full])]
        bounds = (np.minimum(np.arange(num + 1) * size, length)[None].repeat(len(visible), 0)
                  for num, size, length in zip(full.shape[1:], block_mask.BLOCK_SIZE, seqlens, strict=True))
        return BlockGrid(visible, *bounds), seqlen_q, seqlen_k
    groups = []
    for number, whole, tested in zip(heads, full, partial, strict=True):
        test = evaluated.PairTest(block_mask.mask_mod, entry, number, seqlens, block_mask.kv_indices.device)
        stripes = list(_stripes(test, whole, tested, block_mask.BLOCK_SIZE, seqlens))
        groups.append(band.of_runs(*(np.concatenate(parts) for parts in zip(*stripes, strict=True))))
    num_groups = _num_distinct([bands.tobytes() for bands in groups])
    return tuple(groups[::len(groups) // num_groups]), seqlen_q, seqlen_k


def _chosen(argument: str, what: str, index: int | None, count: int) -> int | None:
    """The index, or 0 of a single one; None if there are several to choose from."""
    if index is None:
        return 0 if count == 1 else None
    number = whole_number(f"Argument '{argument}'", index, least=0)
    if number >= count:
        named = f"they are 0 to {count - 1}" if count > 1 else "there is one, 0, which stands for all of them"
        raise ValueError(f"there is no {what} {number}: {named}")
    return number


def _blocks(block_mask: BlockMask) -> tuple[np.ndarray, np.ndarray]:
    """Bool (batch, heads, q-blocks, k-blocks) twice: the full and the partial blocks."""
    shape = tuple(-(-length // size) for length, size in zip(block_mask.seq_lengths, block_mask.BLOCK_SIZE, strict=True))
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, shape, block_mask)
    if block_mask.full_kv_num_blocks is None:
        return np.zeros_like(partial), partial
    full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, shape, block_mask)
    if full.shape != partial.shape:
        raise ValueError(f"its lists of full blocks are for {full.shape[:2]} batch entries and heads, those of partial ones for "
                         f"{partial.shape[:2]}")
    if (full & partial).any():
        raise ValueError("its lists name one block as full and as partial, and torch would count it twice")
    return full, partial


def _listed(counts: Any, indices: Any, shape: tuple[int, ...], block_mask: BlockMask) -> np.ndarray:
    """Bool (batch, heads, q-blocks, k-blocks) from the lists of blocks, of which torch reads those of the first q-blocks."""
    counts, indices = whole_numbers(counts, "counts of blocks"), whole_numbers(indices, "indices of blocks")
    if not 1 <= counts.ndim <= 3 or indices.ndim != counts.ndim + 1 or indices.shape[:-1] != counts.shape:
        raise ValueError(f"its lists must be (batch, heads, q-blocks, k-blocks), and they are {indices.shape} with counts {counts.shape}")
    (num_q, num_k), (size_q, size_k), (seqlen_q, seqlen_k) = shape, block_mask.BLOCK_SIZE, block_mask.seq_lengths
    if counts.shape[-1] < num_q:
        raise ValueError(f"its lists are for {counts.shape[-1]} × {size_q} queries, and its seq_lengths say {seqlen_q}: a slice of queries "
                         "keeps the lengths of the whole, so set its seq_lengths")
    leading = (1,) * (3 - counts.ndim)
    counts = counts.reshape(*leading, *counts.shape)[..., :num_q]
    indices = indices.reshape(*leading, *indices.shape)[..., :num_q, :]
    used = np.arange(indices.shape[-1]) < counts[..., None]
    named = indices[used]
    if named.size and not 0 <= named.min() <= named.max() < num_k:
        strange = named[(named < 0) | (named >= num_k)][0]
        raise ValueError(f"its lists name k-block {strange}, and {seqlen_k} keys are {num_k} blocks of {size_k}")
    chosen = np.zeros((*counts.shape, num_k), dtype=bool)
    chosen[(*np.nonzero(used)[:3], named)] = True
    if (chosen.sum(axis=-1) != counts).any():
        raise ValueError("its lists name a block twice, or fewer blocks than they count")
    return chosen


def _stripes(test: PairTest, full: np.ndarray, partial: np.ndarray, block_size: tuple[int, int],
             seqlens: tuple[int, int]) -> Iterator[tuple[np.ndarray, ...]]:
    """(row, start, end) of each run of visible keys, in order: for one stripe of rows after another, none across blocks of rows.

    Stripes are so low that the partial blocks of one row of blocks are evaluated in bounded memory, and as many of them at once as that
    allows.
    """
    (seqlen_q, seqlen_k), (size_q, size_k) = seqlens, (min(size, length) for size, length in zip(block_size, seqlens, strict=True))
    most_pairs = test.most_pairs()
    width = min(size_k, most_pairs)
    height = min(size_q, max(most_pairs // width, 1))
    blocks, first_row = spread(np.zeros(len(full), dtype=np.int64), np.full(len(full), -(-size_q // height)))
    first_row = blocks * size_q + first_row * height
    inside = first_row < seqlen_q
    blocks, first_row = blocks[inside], first_row[inside]
    across = np.arange(0, size_k, width)
    num_tiles = partial.sum(axis=1)[blocks] * len(across)
    at_once = max(most_pairs // (height * width), 1)
    batch = np.cumsum(num_tiles) // at_once
    for stripes in np.split(np.arange(len(blocks)), np.flatnonzero(np.diff(batch)) + 1):
        owner, tested = np.nonzero(partial[blocks[stripes]])
        corners = np.stack(np.broadcast_arrays(first_row[stripes][owner][:, None], tested[:, None] * size_k + across), axis=-1)
        parts = [test.visible(part, height, width) for part in np.split(corners.reshape(-1, 2), range(at_once, corners[..., 0].size, at_once))
                 if len(part)]
        tiles = np.concatenate(parts or [np.zeros((0, height, width), dtype=bool)])
        tiles = tiles.reshape(-1, len(across), height, width).swapaxes(1, 2).reshape(-1, height, len(across) * width)[..., :size_k]
        for number, stripe in enumerate(stripes.tolist()):
            block, row = blocks[stripe], first_row[stripe]
            end = min(row + height, (block + 1) * size_q, seqlen_q)
            yield _runs_of_stripe(row, end, full[block], partial[block], tiles[owner == number], size_k, seqlen_k)


def _runs_of_stripe(first: int, end: int, full: np.ndarray, partial: np.ndarray, tiles: np.ndarray, size_k: int,
                    seqlen_k: int) -> tuple[np.ndarray, ...]:
    """(row, start, end) of each run of rows first..end. Only columns of listed blocks are looked at, with a gap between those apart.

    Args:
        full, partial: bool (k-blocks,).
        tiles: bool (partial blocks, at least end - first, size_k).
    """
    blocks = np.flatnonzero(partial | full)
    seen = np.zeros((end - first, len(blocks), size_k + 1), dtype=bool)  # the last column of a block is the gap
    seen[..., :-1] = full[blocks][:, None]
    seen[:, partial[blocks], :-1] = tiles[:, :end - first].swapaxes(0, 1)
    seen[..., :-1] &= blocks[:, None] * size_k + np.arange(size_k) < seqlen_k
    joined = np.flatnonzero(np.diff(blocks) == 1)
    seen[:, joined, -1] = seen[:, joined, -2] & seen[:, joined + 1, 0]
    row, start, stop = runs(seen.reshape(end - first, -1))
    start_block, start_key = np.divmod(start, size_k + 1)
    stop_block, stop_key = np.divmod(stop - 1, size_k + 1)
    return first + row, blocks[start_block] * size_k + start_key, blocks[stop_block] * size_k + stop_key + 1


def _num_distinct(heads: list[bytes]) -> int:
    """The fewest groups of equally many neighbouring heads such that all of a group see the same."""
    count = len(heads)
    return next(num for num in range(1, count + 1)
                if count % num == 0 and all(heads[head] == heads[head - head % (count // num)] for head in range(count)))
