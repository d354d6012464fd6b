"""Windows and packed documents, from document bounds, or from an id or a position of each token."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from longca.core import parse_length, whole_number
from longca.masks import band
from longca.masks.band import INF
from longca.masks.forms.types import Window
from longca.masks.forms.values import whole_numbers

PADDING = ("nothing", "self")  # the visible keys of a padding query
MOST_SINGLE = (
    1 << 20
)  # padding tokens with a band each, as documents of one token have; beyond, a band for all


class Documents(NamedTuple):
    """Documents of queries and keys, in order, and the tokens around them."""

    q_bounds: np.ndarray  # int64 (n, 2), half-open; a document may be empty
    k_bounds: np.ndarray  # int64 (n, 2)
    seqlen_q: int
    seqlen_k: int

    @property
    def lengths(self) -> np.ndarray:
        """Number of queries of each document with queries."""
        lengths = self.q_bounds[:, 1] - self.q_bounds[:, 0]
        return lengths[lengths > 0]

    @property
    def num_padding(self) -> int:
        return self.seqlen_q - int(self.lengths.sum())

    def bands(self, causal: bool, window: Window, padding: str) -> np.ndarray:
        """The bands of documents under one window, aligned at the last query and the last key of each.

        Args:
            causal: no token sees a later one.
            padding: one of `PADDING`.
        """
        if not isinstance(padding, str) or padding not in PADDING:
            raise ValueError(
                f"padding is {' or '.join(map(repr, PADDING))}, what its tokens see, and it is {padding!r}"
            )
        lo, hi = _offsets(window)
        q0, q1 = self.q_bounds.T
        k0, k1 = self.k_bounds.T
        shift = k1 - q1
        bands = band.make(q0, q1, k0, k1, lo + shift, (min(hi, 0) if causal else hi) + shift)
        if padding == "nothing":
            return bands
        rows, keys = _outside(self.q_bounds, self.seqlen_q), _outside(self.k_bounds, self.seqlen_k)
        num_rows, num_keys = (int((runs[:, 1] - runs[:, 0]).sum()) for runs in (rows, keys))
        if num_rows != num_keys:
            raise ValueError(
                f"tokens of padding cannot see themselves where {num_rows} queries and {num_keys} keys are "
                "padding: give padding='nothing', or seqlen and seqlen_k with as much padding"
            )
        if num_rows <= MOST_SINGLE:
            rows, keys = map(_singles, (rows, keys))
        ahead = keys[:, :1] - rows[:, :1]
        own = np.concatenate([rows, keys, ahead, ahead], axis=1)
        return band.normal(np.concatenate([bands, own]))


def of_cu_seqlens(
    cu_seqlens: Any,
    cu_seqlens_k: Any = None,
    seqlen: int | str | None = None,
    seqlen_k: int | str | None = None,
) -> Documents:
    """The documents of packed sequences that begin at token 0, with padding after the last one."""
    q_bounds, end_q = _bounds(cu_seqlens, "cu_seqlens")
    k_bounds, end_k = (q_bounds, end_q) if cu_seqlens_k is None else _bounds(cu_seqlens_k, "cu_seqlens_k")
    if len(q_bounds) != len(k_bounds):
        raise ValueError(
            "cu_seqlens and cu_seqlens_k must be of the same documents, and they are of "
            f"{len(q_bounds)} and {len(k_bounds)}"
        )
    if seqlen_k is None:
        seqlen_k = seqlen if cu_seqlens_k is None else None
    return Documents(
        q_bounds, k_bounds, _length("seqlen", seqlen, end_q), _length("seqlen_k", seqlen_k, end_k)
    )


def of_document_ids(ids: Any, padding_id: int | None) -> Documents:
    """The documents of token ids: runs of equal ids."""
    numbers = _one_row(ids, "document ids")
    bounds = _runs(np.diff(numbers) != 0, len(numbers))
    of_run = numbers[bounds[:, 0]]
    if padding_id is not None:
        padding_id = whole_number("Argument 'padding_id'", padding_id, least=-(1 << 63))
        bounds = bounds[of_run != padding_id]
        of_run = of_run[of_run != padding_id]
    _, first, count = np.unique(of_run, return_index=True, return_counts=True)
    if (count > 1).any():
        again = of_run[np.min(first[count > 1])]
        start, other = bounds[of_run == again][:2, 0]
        raise ValueError(
            f"a document must be one run of tokens, and id {again} of token {start} comes back at token "
            f"{other}: sort the tokens by document, or give padding_id={again} where it marks padding"
        )
    return Documents(bounds, bounds, len(numbers), len(numbers))


def of_position_ids(positions: Any, seqlen: int | str | None) -> Documents:
    """The documents of token positions.

    A document begins at each position 0, and wherever the position is not the previous one plus 1.
    """
    numbers = _one_row(positions, "position ids")
    if len(numbers) and numbers.min() < 0:
        raise ValueError(
            f"positions must be at least 0, and {numbers.min()} is among them: mark padding by document "
            "ids, or leave it out and give seqlen"
        )
    bounds = _runs((np.diff(numbers) != 1) | (numbers[1:] == 0), len(numbers))
    seqlen = _length("seqlen", seqlen, len(numbers))
    return Documents(bounds, bounds, seqlen, seqlen)


def of_windows(seqlen: int, windows: tuple[Any, ...]) -> list[np.ndarray]:
    """The band of each window over all tokens."""
    if not windows:
        raise ValueError("give at least one window, such as (1023, 0)")
    [first, *_] = windows
    if isinstance(first, (list, tuple)) and first and all(isinstance(pair, (list, tuple)) for pair in first):
        given = ", ".join(str(tuple(pair)) for pair in first)
        raise ValueError(f"each window is an argument of its own: give from_windows({seqlen}, {given})")
    if len(windows) == 2 and all(hasattr(side, "__index__") for side in windows):
        raise ValueError(f"a window is a pair: give from_windows({seqlen}, {windows})")
    return [band.make(0, seqlen, 0, seqlen, *_offsets(window)) for window in windows]


def _offsets(window: Window) -> tuple[int, int]:
    try:
        left, right = map(operator.index, window)
    except (TypeError, ValueError):
        left = right = -2
    if min(left, right) < -1:
        raise ValueError(
            f"a window is (left, right), whole numbers, each at least 0, or -1 for no bound; it is {window!r}"
        )
    # larger ones, such as sys.maxsize, are no bound either
    return (-INF if left < 0 else -min(left, INF)), (INF if right < 0 else min(right, INF))


def _bounds(cu_seqlens: Any, name: str) -> tuple[np.ndarray, int]:
    """The bounds (n, 2) of n documents, and the end of the last one."""
    ends = whole_numbers(cu_seqlens, name)
    if ends.ndim != 1 or len(ends) < 2 or ends[0] != 0 or (ends[1:] < ends[:-1]).any():
        raise ValueError(
            f"{name} must begin with 0, never fall, and end with the number of tokens, "
            "or before padding that seqlen counts"
        )
    return np.stack([ends[:-1], ends[1:]], axis=1), int(ends[-1])


def _length(name: str, given: int | str | None, least: int) -> int:
    """The number of tokens with padding: at least `least`, which is also the default."""
    if given is None:
        return least
    seqlen = parse_length(given)
    if seqlen < least:
        raise ValueError(f"{name} is {seqlen}, and the documents have {least} tokens")
    return seqlen


def _one_row(values: Any, what: str) -> np.ndarray:
    numbers = whole_numbers(values, what)
    if numbers.ndim != 1:
        raise ValueError(
            f"{what} must be (tokens,), or (rows, tokens) for a list of masks, and they are {numbers.shape}"
        )
    return numbers


def _runs(begins: np.ndarray, count: int) -> np.ndarray:
    """The bounds (n, 2) of runs of `count` tokens.

    Args:
        begins: bool (count - 1,): True for a token that begins a run, from the second token on.
    """
    bounds = np.concatenate([[0], np.flatnonzero(begins) + 1, [count]])
    return np.stack([bounds[:-1], bounds[1:]], axis=1)[:count]


def _outside(bounds: np.ndarray, seqlen: int) -> np.ndarray:
    """The runs of padding tokens, int64 (n, 2). Those of queries and of keys have equal lengths, one by one,
    where their sums are equal: either both have the same bounds, or both have one run at the end."""
    begins = np.append(0, bounds[:, 1])
    ends = np.append(bounds[:, 0], seqlen)
    return np.stack([begins, ends], axis=1)[begins < ends]


def _singles(runs: np.ndarray) -> np.ndarray:
    """Each token of these runs as a run of its own."""
    tokens = band.spread(*runs.T)[1]
    return np.stack([tokens, tokens + 1], axis=1)
