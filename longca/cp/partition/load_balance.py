"""The shardings that a planner chooses among. All give each rank the same number of tokens up to
divisibility.

Their names are data: they appear in notes of records, in tables and in `make_sharding`.

    name            sharding                    balance by                            keeps neighbours together
    contiguous      one chunk a rank            nothing                               yes
    zigzag          chunks r and 2P − 1 − r     what grows along the sequence         half
    heap-N          LPT, chunks of N tokens     the mask's area, largest chunk first  no
    level-N         rebalanced contiguous       the mask's area, by swapping chunks   mostly
    stripes         token t on rank t mod P     everything, in every step             no

LPT is the rule "longest processing time first".
"""  # noqa: E501

from __future__ import annotations

import heapq

import numpy as np

from longca.cp.partition.sharding import ChunkedSharding, Sharding, StripedSharding, even_lengths
from longca.masks import Mask
from longca.masks.band import Q0, Q1, areas, spread

CANDIDATES = (
    "contiguous",
    "zigzag",
    "heap-1024",
    "heap-2048",
    "heap-4096",
    "heap-512",
    "level-1024",
    "level-2048",
    "level-256",
    "stripes",
)
"""names of the shardings that planners try by default; of equally cheap ones the first counts"""

# limits of `rebalanced`
TARGET_IMBALANCE = 1.05  # it stops when no rank has more than this multiple of the mean area
MAX_SWAPS = 192
SWAP_PARTNERS = 4  # number of least loaded ranks that are searched for a chunk to swap


def contiguous(seqlen: int, world: int) -> Sharding:
    """Rank r holds the r-th part. Under a sliding window a rank needs only the keys of its neighbours."""
    return ChunkedSharding("contiguous", even_lengths(seqlen, world), range(world), world)


def zigzag(seqlen: int, world: int) -> Sharding:
    """Rank r holds the r-th of 2P chunks and the r-th from the end. It balances work that grows linearly
    along the sequence, such as causal attention."""
    return ChunkedSharding(
        "zigzag", even_lengths(seqlen, 2 * world), [*range(world), *reversed(range(world))], world
    )


def stripes(seqlen: int, world: int) -> Sharding:
    """Token t is on rank t mod P. It balances every mask in every step, but increases the number of row ends
    that tiles must mask."""
    return StripedSharding(seqlen, world)


def lpt(mask: Mask, world: int, chunk: int) -> Sharding:
    """Chunks of about `chunk` tokens, the same number on each rank, assigned by LPT (`heap-N`).

    Chunks are assigned in order of decreasing area, each to the least loaded rank that still has room.
    """
    lengths, work, per_rank = _chunks(mask, world, chunk)
    owners = np.empty(len(lengths), dtype=np.int64)
    least = [(0, 0, rank) for rank in range(world)]  # area and number of chunks so far
    for number in np.argsort(-work, kind="stable").tolist():
        area, held, rank = heapq.heappop(least)
        owners[number] = rank
        if held + 1 < per_rank:
            heapq.heappush(least, (area + int(work[number]), held + 1, rank))
    return ChunkedSharding(f"heap-{chunk}", lengths, owners, world)


def rebalanced(mask: Mask, world: int, chunk: int) -> Sharding:
    """Contiguous, except for some swapped chunks of about `chunk` tokens (`level-N`), so that most documents
    stay contiguous.

    The rank with the largest area repeatedly swaps a chunk for a smaller one of a less loaded rank, until no
    rank exceeds TARGET_IMBALANCE of the mean, no swap helps, or MAX_SWAPS is reached.
    """
    lengths, work, per_rank = _chunks(mask, world, chunk)
    held = np.arange(len(work)).reshape(world, per_rank)
    # of each rank, the smallest first
    held = np.take_along_axis(held, np.argsort(work[held], axis=1, kind="stable"), axis=1)
    held_work = work[held]
    area = held_work.sum(axis=1)
    enough = TARGET_IMBALANCE * area.mean()
    for _ in range(MAX_SWAPS):
        most = int(area.argmax())
        if area[most] <= enough:
            break
        partners = np.argsort(area)[:SWAP_PARTNERS]
        larger, given, taker, other = best_swap(
            held_work[most], held_work[partners], int(area[most]), area[partners], partners
        )
        if larger >= area[most]:
            break
        less = held_work[most, given] - held_work[taker, other]
        area[most], area[taker] = area[most] - less, area[taker] + less
        for rows in (held, held_work):
            rows[most, given], rows[taker, other] = rows[taker, other], rows[most, given]
        for rank in (most, taker):
            order = held_work[rank].argsort(kind="stable")
            held[rank], held_work[rank] = held[rank][order], held_work[rank][order]
    owners = np.empty(len(work), dtype=np.int64)
    owners[held] = np.arange(world)[:, None]
    return ChunkedSharding(f"level-{chunk}", lengths, owners, world)


def best_swap(
    ours: np.ndarray, theirs: np.ndarray, our_area: int, their_areas: np.ndarray, ranks: np.ndarray
) -> tuple[int, int, int, int]:
    """(the larger of both areas after the swap, index of our chunk, the other rank, index of its chunk).

    Args:
        ours, theirs: the ascending areas of our chunks (n,), and of those of other ranks (ranks, n).
        our_area, their_areas, ranks: the sum of ours, the sums of theirs, none of which is larger, and the
            other ranks, (ranks,) each.
    """
    # All ranks are searched at once on one axis, on which the values of each rank lie above those of the
    # previous one. Values are twice the areas, so that half a difference is an integer.
    count, num_chunks = theirs.shape
    rows = np.arange(count)[:, None]
    shares = their_areas[:, None]
    apart = rows * (4 * our_area + 2)
    first = rows * num_chunks
    at = (2 * theirs + apart).ravel().searchsorted(2 * ours + (apart + shares - our_area))
    # nearest values below and above half the difference, for each of our chunks
    nearest: np.ndarray = np.empty((count, 2, num_chunks), dtype=at.dtype)
    np.maximum(at - 1, first, out=nearest[:, 0])
    np.minimum(at, first + (num_chunks - 1), out=nearest[:, 1])
    less = ours - theirs.ravel()[nearest]
    larger = np.maximum(our_area - less, shares[..., None] + less).reshape(count, -1)
    places = larger.argmin(axis=1).tolist()
    nearest = nearest.reshape(count, -1)
    return min(
        (int(larger[row, column]), column % num_chunks, rank, int(nearest[row, column]) % num_chunks)
        for row, (column, rank) in enumerate(zip(places, ranks.tolist(), strict=True))
    )


def _chunks(mask: Mask, world: int, chunk: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(lengths of equal chunks of about `chunk` tokens, their areas, chunks for each rank)."""
    per_rank = max(1, round(mask.seqlen_q / (world * chunk)))
    lengths = even_lengths(mask.seqlen_q, world * per_rank)
    key = ("row areas", world * per_rank)
    if key not in mask.kept:
        mask.kept[key] = row_areas(mask, np.concatenate([[0], np.cumsum(lengths)]))
    return lengths, mask.kept[key], per_rank


def row_areas(mask: Mask, edges: np.ndarray) -> np.ndarray:
    """Visible pairs of the rows edges[n]..edges[n + 1], over all head groups, (n,) int64."""
    if mask.grid is not None:
        grid = mask.grid
        seen = np.stack(
            [
                rows.astype(np.float64) @ width
                for rows, width in zip(grid.visible, np.diff(grid.k_bounds, axis=1), strict=True)
            ]
        )
        below = np.pad(np.cumsum(seen * np.diff(grid.q_bounds, axis=1), axis=1), ((0, 0), (1, 0)))
        return np.diff(
            sum(np.interp(edges, bounds, total) for bounds, total in zip(grid.q_bounds, below, strict=True))
        ).astype(np.int64)
    bands = np.concatenate(mask.groups)
    owner, part = spread(
        np.searchsorted(edges, bands[:, Q0], side="right") - 1, np.searchsorted(edges, bands[:, Q1])
    )
    pieces = bands[owner]
    pieces[:, Q0], pieces[:, Q1] = (
        np.maximum(pieces[:, Q0], edges[part]),
        np.minimum(pieces[:, Q1], edges[part + 1]),
    )
    return np.bincount(part, areas(pieces), len(edges) - 1).astype(np.int64)


def make_sharding(name: str, mask: Mask, world: int) -> Sharding:
    """Makes the sharding of that name for the mask's tokens: contiguous, zigzag, stripes, heap-N or level-N.

    Raises:
        ValueError: there is no sharding of that name.
    """
    kind, _, chunk = name.partition("-")
    by_area = {"heap": lpt, "level": rebalanced}
    if kind in by_area and chunk.isdigit() and int(chunk):
        return by_area[kind](mask, world, int(chunk))
    plain = {"contiguous": contiguous, "zigzag": zigzag, "stripes": stripes}
    if name not in plain:
        raise ValueError(f"no placement '{name}': there are {', '.join(plain)}, heap-N and level-N")
    return plain[name](mask.seqlen_q, world)


def worth_trying(name: str, mask: Mask) -> bool:
    """True if the sharding of that name may be the best for this mask.

    Rebalanced ones (`level-N`) are excluded for one or two bands, such as `causal` and `prefix_lm`, where
    they gain little.
    """
    return not name.startswith("level") or mask.grid is not None or max(map(len, mask.groups)) > 2
