"""The permutations that plans choose among. All give ranks the same number of tokens, but for a few where it does not divide."""

from __future__ import annotations

import heapq

import numpy as np

from longca.cp.partition.sharding import ChunkedSharding, Sharding, StripedSharding
from longca.cp.partition.split import even_ranges
from longca.masks.band import Q0, Q1, areas
from longca.masks.mask import Mask
from longca.masks.ragged import spread

# Of `level`: what a rank may have, as a multiple of its share; swaps, at most; among how many ranks one looks for a chunk
LEVEL, MOST_SWAPS, MOST_ASKED = 1.05, 192, 4


def contiguous(seqlen: int, world: int) -> Sharding:
    """Rank r holds the r-th part: a window needs the neighbours alone."""
    return ChunkedSharding("contiguous", _lengths(seqlen, world), range(world), world)


def zigzag(seqlen: int, world: int) -> Sharding:
    """2P chunks, the r-th and the r-th from the end on rank r: balances what grows evenly along the sequence, as causal does."""
    return ChunkedSharding("zigzag", _lengths(seqlen, 2 * world), [*range(world), *reversed(range(world))], world)


def stripes(seqlen: int, world: int) -> Sharding:
    """Token t on rank t mod P: balances every mask and every step, at the price of more edges for kernels' tiles."""
    return StripedSharding(seqlen, world)


def heap(mask: Mask, world: int, chunk: int) -> Sharding:
    """Equal chunks of about `chunk` tokens, as many for each rank, dealt by area: the largest first, to whoever has least so far."""
    lengths, work, per_rank = _chunks(mask, world, chunk)
    owners = np.empty(len(lengths), dtype=np.int64)
    least = [(0, 0, rank) for rank in range(world)]  # area and chunks so far
    for number in np.argsort(-work, kind="stable").tolist():
        area, held, rank = heapq.heappop(least)
        owners[number] = rank
        if held + 1 < per_rank:
            heapq.heappush(least, (area + int(work[number]), held + 1, rank))
    return ChunkedSharding(f"heap-{chunk}", lengths, owners, world)


def level(mask: Mask, world: int, chunk: int) -> Sharding:
    """Contiguous, but for some equal chunks of about `chunk` tokens: the rank with the largest area swaps a chunk for a smaller one of a
    rank with little, until it has hardly more than its share, no swap helps, or there were enough. So most documents stay together.
    """
    lengths, work, per_rank = _chunks(mask, world, chunk)
    held = np.arange(len(work)).reshape(world, per_rank)
    held = np.take_along_axis(held, np.argsort(work[held], axis=1, kind="stable"), axis=1)  # of each rank, the smallest first
    area = work[held].sum(axis=1)
    for _ in range(MOST_SWAPS):
        most = int(area.argmax())
        if area[most] <= LEVEL * area.mean():
            break
        larger, one, taker, other = min(_best_swap(work[held[most]], work[held[rank]], area[most], area[rank], int(rank))
                                        for rank in np.argsort(area)[:MOST_ASKED])
        if larger >= area[most]:
            break
        held[most, one], held[taker, other] = held[taker, other], held[most, one]
        for rank in (most, taker):
            area[rank] = work[held[rank]].sum()
            held[rank] = held[rank][np.argsort(work[held[rank]], kind="stable")]
    owners = np.empty(len(work), dtype=np.int64)
    owners[held] = np.arange(world)[:, None]
    return ChunkedSharding(f"level-{chunk}", lengths, owners, world)


def _best_swap(ours: np.ndarray, theirs: np.ndarray, our_area: int, their_area: int, rank: int) -> tuple[int, int, int, int]:
    """(the larger area after it, which of ours, the other rank, which of theirs), of chunks in rising order."""
    at = np.searchsorted(theirs, ours - (our_area - their_area) / 2)
    nearest = np.clip(np.stack([at - 1, at]), 0, len(theirs) - 1)
    less = ours - theirs[nearest]
    larger = np.maximum(our_area - less, their_area + less)
    side, one = np.unravel_index(larger.argmin(), larger.shape)
    return int(larger[side, one]), int(one), rank, int(nearest[side, one])


def _chunks(mask: Mask, world: int, chunk: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(lengths of equal chunks of about `chunk` tokens, their areas, how many of them a rank gets)."""
    per_rank = max(1, round(mask.seqlen_q / (world * chunk)))
    lengths = np.array(_lengths(mask.seqlen_q, world * per_rank))
    return lengths, row_areas(mask, np.concatenate([[0], np.cumsum(lengths)])), per_rank


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


CANDIDATES = ("contiguous", "zigzag", "heap-1024", "heap-2048", "heap-4096", "heap-512", "level-1024", "level-2048", "level-256", "stripes")


def place(name: str, mask: Mask, world: int) -> Sharding:
    """The placement of that name: contiguous, zigzag, stripes, or heap-N or level-N with chunks of about N tokens."""
    kind, _, chunk = name.partition("-")
    by_area = {"heap": heap, "level": level}
    if kind in by_area and chunk.isdigit() and int(chunk):
        return by_area[kind](mask, world, int(chunk))
    plain = {"contiguous": contiguous, "zigzag": zigzag, "stripes": stripes}
    if name not in plain:
        raise ValueError(f"no placement '{name}': there are {', '.join(plain)}, heap-N and level-N")
    return plain[name](mask.seqlen_q, world)


def worth_trying(name: str, mask: Mask) -> bool:
    """Whether the placement of that name may be the best. Under one or two bands, as of `causal` and `prefix_lm`, others are hardly
    worse: 2 % at most, of two documents.
    """
    return not name.startswith("level") or mask.grid is not None or max(map(len, mask.groups)) > 2
