"""Formats that list hidden or visible parts: FlashMask's columns, MagiAttention's slices, rasters and block
maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from longca.core import whole_number
from longca.masks import band
from longca.masks.band import INF
from longca.masks.forms.types import SliceType
from longca.masks.forms.values import check_total, host_array, kind, runs, whole_numbers
from longca.masks.grid import BlockGrid


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
        raise ValueError(
            f"startend_row_indices must be (1, heads, keys, {'1 or 2' if causal else '2 or 4'}) where "
            f"causal is {causal}, and they are {np.shape(columns)}"
        )
    seqlen_k = table.shape[1]
    num_queries = seqlen_k if seqlen_q is None else whole_number("Argument 'seqlen_q'", seqlen_q)
    return (
        tuple(_of_hidden(_hidden(of_group, causal, num_queries), num_queries) for of_group in table),
        num_queries,
        seqlen_k,
    )


def of_slices(q_ranges: Any, k_ranges: Any, types: Any) -> np.ndarray:
    """The bands of attention slices: one for each non-empty slice."""
    known = ", ".join(f"{kind.value} for {kind.name}" for kind in SliceType)
    q, k, kind = (
        whole_numbers(values, name)
        for values, name in ((q_ranges, "q_ranges"), (k_ranges, "k_ranges"), (types, f"types ({known})"))
    )
    for name, ranges in (("q_ranges", q), ("k_ranges", k)):
        if ranges.size % 2 or (ranges.ndim > 1 and ranges.shape[-1] != 2):
            raise ValueError(f"{name} must be (n, 2), a start and an end each, and these are {ranges.shape}")
    q = q.reshape(-1, 2)
    k = k.reshape(-1, 2)
    kind = kind.reshape(-1)
    if not len(q) == len(k) == len(kind):
        raise ValueError(
            f"slices must be as many q_ranges as k_ranges and types, and these are {len(q)}, {len(k)} and "
            f"{len(kind)}"
        )
    strange = kind[~np.isin(kind, list(SliceType))]
    if len(strange):
        raise ValueError(f"a type of slice is {known}, and {strange[0]} is none of them")
    hi = np.where(kind & SliceType.CAUSAL, k[:, 1] - q[:, 1], INF)
    lo = np.where(kind & SliceType.INVCAUSAL, k[:, 0] - q[:, 0], -INF)
    return band.make(q[:, 0], q[:, 1], k[:, 0], k[:, 1], lo, hi)


def of_dense(raster: Any) -> tuple[tuple[np.ndarray, ...], int, int]:
    """(bands of each head group, queries, keys) of a bool (Sq, Sk) or (G, Sq, Sk); True is visible."""
    visible = host_array(raster, "a raster must be bool (queries, keys)")
    if visible.dtype != bool or visible.ndim not in (2, 3):
        raise ValueError(
            "a raster must be bool (queries, keys) or (groups, queries, keys), and it is "
            f"{kind(visible, raster)}{f' {visible.shape}' if visible.ndim else ''}"
        )
    groups = visible if visible.ndim == 3 else visible[None]
    return tuple(band.of_runs(*runs(group)) for group in groups), *visible.shape[-2:]


def of_block_map(sizes_q: Any, sizes_k: Any, visible: Any) -> tuple[BlockGrid, int, int]:
    """(grid of blocks, queries, keys).

    Args:
        sizes_q, sizes_k: tokens of each block, (M,) and (N,), or (G, M) and (G, N); or one number for all.
        visible: bool (M, N) or (G, M, N), also with a batch axis of 1 before.
    """
    chosen = host_array(visible, "`visible` must be bool (q-blocks, k-blocks)")
    if chosen.ndim == 4 and len(chosen) > 1:
        raise ValueError(
            f"`visible` has {len(chosen)} batch entries, and a mask is that of one: give visible[entry], "
            "and longca.attention a list of masks"
        )
    chosen = chosen[0] if chosen.ndim == 4 and len(chosen) else chosen
    chosen = chosen[None] if chosen.ndim == 2 else chosen
    if chosen.dtype != bool or chosen.ndim != 3 or not chosen.size:
        raise ValueError(
            "`visible` must be bool (q-blocks, k-blocks) or (head groups, q-blocks, k-blocks), and it is "
            f"{kind(chosen, visible)} {np.shape(visible)}"
        )
    q_bounds, k_bounds = (
        _bounds(sizes, name, len(chosen), num_blocks, axis)
        for sizes, name, num_blocks, axis in (
            (sizes_q, "sizes_q", chosen.shape[1], "q-blocks"),
            (sizes_k, "sizes_k", chosen.shape[2], "k-blocks"),
        )
    )
    return (
        BlockGrid(chosen.copy(), q_bounds, k_bounds).without_empty(),
        int(q_bounds[0, -1]),
        int(k_bounds[0, -1]),
    )


def _bounds(sizes: Any, name: str, num_groups: int, num_blocks: int, axis: str) -> np.ndarray:
    """The bounds of blocks of these sizes, int64 (G, blocks + 1), from 0 to the number of tokens in each
    group."""
    given = whole_numbers(sizes, name)
    if (
        given.ndim > 2
        or (given.ndim and given.shape[-1] != num_blocks)
        or (given.ndim == 2 and len(given) not in (1, num_groups))
    ):
        raise ValueError(
            f"{name} must be {(num_blocks,)} or {(num_groups, num_blocks)}, a size for each of the {axis} "
            f"of `visible`, and they are {given.shape}"
        )
    given = np.broadcast_to(given, (num_groups, num_blocks))
    if given.min() < 0:
        raise ValueError(f"{name} must be whole numbers of at least 0, and {given.min()} is among them")
    check_total(given, name)
    bounds = np.pad(np.cumsum(given, axis=1), ((0, 0), (1, 0)))
    other = np.flatnonzero(bounds[:, -1] != bounds[0, -1])
    if len(other):
        raise ValueError(
            f"{name} must have one sum in all head groups, and that of group 0 is {bounds[0, -1]}, of group "
            f"{other[0]} {bounds[other[0], -1]}"
        )
    return bounds


def _hidden(table: np.ndarray, causal: bool, seqlen_q: int) -> np.ndarray:
    """The ranges of queries that do not see each key, (Sk, n, 2); empty ones are (0, 0)."""
    key = np.arange(len(table))
    beginning = np.zeros(len(table), dtype=np.int64)
    end = np.full(len(table), seqlen_q)
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
    """The bands of the remaining visible queries of each key."""
    hidden = np.take_along_axis(hidden, np.argsort(hidden[..., :1], axis=1), axis=1)
    reached = np.maximum.accumulate(hidden[..., 1], axis=1)
    start = np.pad(reached, ((0, 0), (1, 0)))
    end = np.pad(hidden[..., 0], ((0, 0), (0, 1)), constant_values=seqlen_q)
    key, slot = np.nonzero(start < end)
    return band.normal(band.transpose(band.of_runs(key, start[key, slot], end[key, slot])))
