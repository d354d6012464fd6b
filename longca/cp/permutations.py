"""The permutations that plans choose among. All give ranks the same number of tokens, but for a few where it does not divide."""

from __future__ import annotations

import heapq

import numpy as np

from longca.cp.placement import Placement, Runs, Stripes
from longca.cp.split import even_ranges
from longca.masks.band import Q0, Q1, areas
from longca.masks.mask import Mask
from longca.masks.ragged import spread


def contiguous(seqlen: int, world: int) -> Placement:
    """Rank r holds the r-th part: a window needs the neighbours alone."""
    return Runs("contiguous", _lengths(seqlen, world), range(world), world)


def zigzag(seqlen: int, world: int) -> Placement:
    """2P chunks, the r-th and the r-th from the end on rank r: balances what grows evenly along the sequence, as causal does."""
    return Runs("zigzag", _lengths(seqlen, 2 * world), [*range(world), *reversed(range(world))], world)


def stripes(seqlen: int, world: int) -> Placement:
    """Token t on rank t mod P: balances every mask and every step, at the price of more edges for kernels' tiles."""
    return Stripes(seqlen, world)


def heap(mask: Mask, world: int, chunk: int) -> Placement:
    """Equal chunks of about `chunk` tokens, as many for each rank, dealt by area: the largest first, to whoever has least so far."""
    per_rank = max(1, round(mask.seqlen_q / (world * chunk)))
    lengths = np.array(_lengths(mask.seqlen_q, world * per_rank))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    work = row_areas(mask, edges)
    owners = np.empty(len(lengths), dtype=np.int64)
    least = [(0, 0, rank) for rank in range(world)]  # area and chunks so far
    for number in np.argsort(-work, kind="stable").tolist():
        area, held, rank = heapq.heappop(least)
        owners[number] = rank
        if held + 1 < per_rank:
            heapq.heappush(least, (area + int(work[number]), held + 1, rank))
    return Runs(f"heap-{chunk}", lengths, owners, world)


def row_areas(mask: Mask, edges: np.ndarray) -> np.ndarray:
    """Visible pairs of the rows edges[n]..edges[n + 1], over all head groups, (n,) int64."""
    if mask.grid is not None:
        grid = mask.grid
        seen = np.stack([rows.astype(np.float64) @ width for rows, width in zip(grid.visible, np.diff(grid.k_bounds, axis=1), strict=True)])
        below = np.pad(np.cumsum(seen * np.diff(grid.q_bounds, axis=1), axis=1), ((0, 0), (1, 0)))
        return np.diff(sum(np.interp(edges, bounds, total) for bounds, total in zip(grid.q_bounds, below, strict=True))).astype(np.int64)
    bands = np.concatenate(mask.groups)
    owner, part = spread(np.searchsorted(edges, bands[:, Q0], side="right") - 1, np.searchsorted(edges, bands[:, Q1]))
    pieces = bands[owner]
    pieces[:, Q0], pieces[:, Q1] = np.maximum(pieces[:, Q0], edges[part]), np.minimum(pieces[:, Q1], edges[part + 1])
    return np.bincount(part, areas(pieces), len(edges) - 1).astype(np.int64)


def _lengths(seqlen: int, parts: int) -> list[int]:
    return [len(part) for part in even_ranges(seqlen, parts)]


CANDIDATES = ("contiguous", "zigzag", "heap-1024", "heap-2048", "heap-4096", "heap-512", "stripes")


def place(name: str, mask: Mask, world: int) -> Placement:
    """The placement of that name: contiguous, zigzag, stripes, or heap-N with chunks of about N tokens."""
    kind, _, chunk = name.partition("-")
    if kind == "heap" and chunk.isdigit() and int(chunk):
        return heap(mask, world, int(chunk))
    plain = {"contiguous": contiguous, "zigzag": zigzag, "stripes": stripes}
    if name not in plain:
        raise ValueError(f"no placement '{name}': there are {', '.join(plain)} and heap-N")
    return plain[name](mask.seqlen_q, world)
