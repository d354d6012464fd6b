"""The band algebra: the one definition of every mask.

A band is a row `(q0, q1, k0, k1, lo, hi)` of an int64 array: query i in [q0, q1) sees key j in [k0, k1) iff
lo <= j - i <= hi. Offsets without a bound are ±INF. Bands are closed under restriction to a rectangle,
translation and token striping: each operation maps a band to at most one band. Functions of bands take and
return
(n, 6) arrays.
"""

from itertools import pairwise
from typing import Any

import numpy as np

Q0, Q1, K0, K1, LO, HI = range(6)
INF = 1 << 40  # beyond any offset, and far enough from the ends of int64 that sums and products stay exact
MOST_COMPARED = 1 << 18  # pairs of bands that are compared at once: some 50 MB


class BandTable(np.ndarray):
    """Bands for display: an int64 array whose text shows ±∞ for offsets without a bound."""

    def __repr__(self) -> str:
        return f"bands({np.array2string(np.asarray(self), separator=', ', prefix='bands(', threshold=600, formatter={'int': offset_text})})"  # noqa: E501

    def __str__(self) -> str:
        return np.array2string(np.asarray(self), threshold=600, formatter={"int": offset_text})


def offset_text(offset: Any) -> str:
    """The number as text; "∞" or "-∞" for an offset without a bound."""
    return str(offset) if abs(offset) < INF else "∞" if offset > 0 else "-∞"


def as_bands(rows: object) -> np.ndarray:
    """Rows of six numbers (±math.inf allowed) as a normal (n, 6) int64 array."""
    try:
        try:
            array = np.asarray(rows, dtype=np.float64 if _has_float(rows) else np.int64)
        except OverflowError:  # beyond ±INF as well
            array = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"a band is six numbers (q0, q1, k0, k1, lo, hi), and there are none in {rows!r}"
        ) from None
    if array.size and array.shape[-1:] != (6,):
        raise ValueError(
            f"a band is six numbers (q0, q1, k0, k1, lo, hi), and these have the shape {array.shape}"
        )
    strange = array[array != np.round(array)]  # NaN too
    if strange.size:
        raise ValueError(f"the numbers of a band are whole or ±math.inf, and {strange[0]:g} is neither")
    array = np.clip(array, -INF, INF).astype(np.int64).reshape(-1, 6)
    return normal(array)


def make(q0: object, q1: object, k0: object, k1: object, lo: object = -INF, hi: object = INF) -> np.ndarray:
    """Bands from their columns, each a number or an array of n (broadcast), in normal form."""
    columns = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in (q0, q1, k0, k1, lo, hi))
    )
    return normal(np.stack(columns, axis=1))


def normal(bands: np.ndarray) -> np.ndarray:
    """The same pairs in normal form: no empty band, tight rectangles, ±INF for offsets without a bound,
    sorted."""
    b, _ = tight(bands)
    return b[np.lexsort(b.T[::-1])]


def tight(bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bands, kept): normal form in the given order, and a mask of the given bands that are not empty."""
    b = np.array(bands, dtype=np.int64).reshape(-1, 6)
    # rows that see a key, then columns that a remaining row sees: after one pass of each, both are tight
    b[:, Q0], b[:, Q1] = np.maximum(b[:, Q0], b[:, K0] - b[:, HI]), np.minimum(b[:, Q1], b[:, K1] - b[:, LO])
    b[:, K0], b[:, K1] = np.maximum(b[:, K0], b[:, Q0] + b[:, LO]), np.minimum(b[:, K1], b[:, Q1] + b[:, HI])
    kept = np.flatnonzero((b[:, Q0] < b[:, Q1]) & (b[:, K0] < b[:, K1]) & (b[:, LO] <= b[:, HI]))
    b = b[kept]
    b[b[:, LO] <= b[:, K0] - (b[:, Q1] - 1), LO] = -INF
    b[b[:, HI] >= (b[:, K1] - 1) - b[:, Q0], HI] = INF
    return b, kept


def areas(bands: np.ndarray) -> np.ndarray:
    """Exact number of visible pairs of each band, (n,) int64."""
    q0, q1, k0, k1, lo, hi = bands.T
    least = k0 - q1
    most = k1 - 1 - q0
    # `clip` takes longer on few bands
    below, upto = (np.minimum(np.maximum(offset, least), most) for offset in (lo - 1, hi))
    return np.maximum(_pairs_upto(q0, q1, k0, k1, upto) - _pairs_upto(q0, q1, k0, k1, below), 0)


def _pairs_upto(q0: np.ndarray, q1: np.ndarray, k0: np.ndarray, k1: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Pairs of the rectangle with j - i <= h: row i has clamp(i + h + 1 - k0, 0, k1 - k0) of them."""
    width = k1 - k0
    shift = h + 1 - k0
    return _clamped_sum(q1 + shift, width) - _clamped_sum(q0 + shift, width)


def _clamped_sum(x: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Sum of clamp(t, 0, width) over all t < x."""
    ramp = np.minimum(np.maximum(x, 0), width + 1)
    return ramp * (ramp - 1) // 2 + np.maximum(x - width - 1, 0) * width


def cut(bands: np.ndarray, rows: tuple[int, int], cols: tuple[int, int]) -> np.ndarray:
    """The part inside rows × cols, in the same coordinates."""
    b = bands.copy()
    b[:, Q0], b[:, Q1] = np.maximum(b[:, Q0], rows[0]), np.minimum(b[:, Q1], rows[1])
    b[:, K0], b[:, K1] = np.maximum(b[:, K0], cols[0]), np.minimum(b[:, K1], cols[1])
    return normal(b)


def shift(bands: np.ndarray, dq: np.ndarray | int, dk: np.ndarray | int) -> np.ndarray:
    """Queries moved by dq, keys by dk: numbers, or arrays (n,) with one for each band."""
    b = bands.copy()
    b[:, Q0] += dq
    b[:, Q1] += dq
    b[:, K0] += dk
    b[:, K1] += dk
    for column in (LO, HI):
        b[:, column] = np.where(np.abs(bands[:, column]) < INF, bands[:, column] + dk - dq, bands[:, column])
    return b


def join_rectangles(bands: np.ndarray) -> np.ndarray:
    """The same pairs, with adjacent full rectangles of the same columns merged. Takes and returns tight
    bands, unordered."""
    full = (bands[:, LO] == -INF) & (bands[:, HI] == INF)
    if full.sum() < 2:
        return bands
    whole = bands[full]
    whole = whole[np.lexsort([whole[:, Q0], whole[:, K1], whole[:, K0]])]
    goes_on = (
        (whole[1:, Q0] == whole[:-1, Q1])
        & (whole[1:, K0] == whole[:-1, K0])
        & (whole[1:, K1] == whole[:-1, K1])
    )
    if not goes_on.any():
        return bands
    starts = np.flatnonzero(np.append(True, ~goes_on))
    tall = whole[starts]
    tall[:, Q1] = whole[np.append(starts[1:], len(whole)) - 1, Q1]
    return np.concatenate([bands[~full], tall])


def stripe(bands: np.ndarray, q_rank: int, k_rank: int, world: int) -> np.ndarray:
    """The pairs (q_rank + world·i, k_rank + world·j), as bands over (i, j)."""
    b = bands.copy()
    b[:, [Q0, Q1]] = -((q_rank - b[:, [Q0, Q1]]) // world)
    b[:, [K0, K1]] = -((k_rank - b[:, [K0, K1]]) // world)
    offset = k_rank - q_rank
    low = np.abs(b[:, LO]) < INF
    high = np.abs(b[:, HI]) < INF
    b[low, LO] = -((offset - b[low, LO]) // world)
    b[high, HI] = (b[high, HI] - offset) // world
    return normal(b)


def transpose(bands: np.ndarray) -> np.ndarray:
    """The transpose: queries and keys swapped. The result is in normal form except for its order."""
    flipped = bands[:, [K0, K1, Q0, Q1, HI, LO]]
    flipped[:, [LO, HI]] *= -1
    return flipped


def intersect(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The intersection, band by band (broadcast over leading axes), not normalised: bands may be empty."""
    low = np.maximum(a[..., [Q0, K0, LO]], b[..., [Q0, K0, LO]])
    high = np.minimum(a[..., [Q1, K1, HI]], b[..., [Q1, K1, HI]])
    return np.stack(
        [low[..., 0], high[..., 0], low[..., 1], high[..., 1], low[..., 2], high[..., 2]], axis=-1
    )


def overlap(bands: np.ndarray) -> tuple[int, int] | None:
    """Indices of two bands that share a pair; None where all are disjoint.

    Bands that share a pair overlap on three axes: rows, keys and offsets j - i. Only pairs of bands that
    overlap on one axis are compared, on the axis with the fewest such pairs. O(n log n + these pairs) time.
    """
    if len(bands) < 2:
        return None
    q0, q1, k0, k1, *_ = bands.T
    order, count = _meetings(q0, q1)
    for begin, end in ((k0, k1), _offsets(bands)):
        if count.sum() > len(bands):
            order, count = min((order, count), _meetings(begin, end), key=lambda axis: int(axis[1].sum()))
    upto = np.cumsum(count)
    chunks = np.searchsorted(upto, np.arange(0, upto[-1], MOST_COMPARED), side="right")
    for start, stop in pairwise([*chunks.tolist(), len(order)]):
        position = np.arange(start, stop)
        owner, later = spread(position + 1, position + 1 + count[start:stop])
        indices = np.sort(order[np.stack([position[owner], later])], axis=0)
        shared = indices[:, _hold_a_pair(intersect(bands[indices[0]], bands[indices[1]]))]
        if shared.size:
            first, other = shared[:, np.lexsort(shared[::-1])[0]].tolist()
            return first, other
    return None


def overlap_text(bands: np.ndarray) -> str | None:
    """Two bands that share a pair, and the pairs; None where all are disjoint.

    It continues the sentence "bands must be disjoint, and" of an error.
    """
    indices = overlap(bands)
    if indices is None:
        return None
    first, other = bands[list(indices)].view(BandTable)
    [[q0, q1, k0, k1, *_]] = normal(intersect(first, other)[None]).tolist()
    return f"{first} and {other} are not: both hold queries {q0} to {q1 - 1} of keys {k0} to {k1 - 1}"


def _meetings(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order, count) of n half-open ranges, sorted by their begin.

    Among the ranges that do not begin earlier, range order[i] overlaps exactly order[i + 1], …, order[i +
    count[i]].
    """
    order = np.argsort(begin, kind="stable")
    before_end = np.searchsorted(begin[order], end[order])
    return order, np.maximum(before_end - np.arange(1, len(order) + 1), 0)


def _offsets(bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The half-open ranges of offsets j - i that bands hold; empty or reversed for an empty band."""
    q0, q1, k0, k1, lo, hi = bands.T
    return np.maximum(lo, k0 - q1 + 1), np.minimum(hi, k1 - 1 - q0) + 1


def _hold_a_pair(bands: np.ndarray) -> np.ndarray:
    """Bool (n,): True for a band in any form that is not empty.

    A rectangle that is not empty has each offset between its corners'.
    """
    q0, q1, k0, k1, *_ = bands.T
    begin, end = _offsets(bands)
    return (q0 < q1) & (k0 < k1) & (begin < end)


def of_runs(row: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The bands that hold exactly the keys start..end of these rows. They depend on the visible pairs alone.

    Down the rows of a band, the first visible key stays constant and then advances by 1 per row; the last
    visible key advances and then stays constant. A band extends over rows as long as this holds.

    Args:
        row, start, end: int64 (n,), sorted by row, then by start; runs of one row neither overlap nor touch.
    """
    if len(row) == 0:
        return np.zeros((0, 6), dtype=np.int64)
    width = int(end.max()) + 2
    keys = row * width + start
    following = np.minimum(np.searchsorted(keys, keys + width), len(keys) - 1)
    start_step = keys[following] - keys - width
    end_step = end[following] - end
    goes_on = np.flatnonzero((start_step >= 0) & (start_step <= 1) & (end_step >= 0) & (end_step <= 1))
    before = np.arange(len(keys))
    moves = np.zeros((2, len(keys)), dtype=bool)
    before[following[goes_on]] = goes_on
    moves[:, following[goes_on]] = start_step[goes_on], end_step[goes_on]

    linked = before != np.arange(len(keys))
    turns = linked & linked[before] & ((moves[0][before] & ~moves[0]) | (~moves[1][before] & moves[1]))
    # in order of rows, since a band that has just ended does not restrict the next one
    for run in np.flatnonzero(turns).tolist():
        linked[run] = not linked[before[run]]
    moves &= linked
    first = np.where(linked, before, np.arange(len(keys)))
    while (first != first[first]).any():
        first = first[first]

    order = np.argsort(first, kind="stable")
    opens = np.flatnonzero(np.diff(first[order], prepend=-1))
    one = order[opens]
    last = order[np.append(opens[1:], len(order)) - 1]
    start_moves, end_moves = (np.logical_or.reduceat(side[order], opens) for side in moves)
    return make(
        row[one],
        row[last] + 1,
        start[one],
        end[last],
        np.where(start_moves, start[last] - row[last], -INF),
        np.where(end_moves, end[one] - 1 - row[one], INF),
    )


def dense(bands: np.ndarray, seqlen_q: int, seqlen_k: int) -> np.ndarray:
    """Bool raster (seqlen_q, seqlen_k). O(S²): for tests, plots and small lengths only."""
    raster = np.zeros((seqlen_q, seqlen_k), dtype=bool)
    for q0, q1, k0, k1, lo, hi in bands.tolist():
        offset = np.arange(k0, k1)[None, :] - np.arange(q0, q1)[:, None]
        raster[q0:q1, k0:k1] |= (offset >= lo) & (offset <= hi)
    return raster


def _has_float(rows: object) -> bool:
    return np.asarray(rows).dtype.kind == "f"


def spread(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All members of the ranges start[n]..end[n], as (n, member) pairs; empty ranges have none."""
    count = np.maximum(end - start, 0)
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + (start - (np.cumsum(count) - count))[owner]
