"""The verdict on one pair of results: faster, slower, or why neither can be said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from longca.compare.pairs import RecordPair
from longca.compare.side import Side, Spread

OutcomeOfPair = Literal["slower", "broke", "faster", "fixed", "ambiguous", "same", "new", "gone", "incomparable", "untimed"]
OUTCOMES: tuple[OutcomeOfPair, ...] = get_args(OutcomeOfPair)
TIMED = ("faster", "slower", "same", "ambiguous")
Basis = Literal["time", "rate", "share of peak"]


@dataclass(frozen=True)
class Rule:
    """Rules by which pairs are judged.

    Two speeds are the same if their medians differ by no more than the tolerance. Otherwise they are ambiguous if their boxes overlap: a
    box reaches from the speed at the third quartile of the times to that at the first (of a published rate, as far as its reading may be
    off). Otherwise B is faster or slower. Swapping A and B swaps faster and slower, and leaves the rest.
    """

    tolerance: float = 0.03
    """the larger speed over the smaller, less 1"""
    by_rate: bool = False
    """rates are compared as they are, even across models of GPUs"""


@dataclass(frozen=True)
class PairVerdict:
    """The outcome of a pair."""

    outcome: OutcomeOfPair
    why: str = ""
    """of what broke, was fixed, cannot be compared or was not timed"""
    ratio: float | None = None
    """speed of B over that of A"""
    basis: Basis | None = None
    """what was compared; None where nothing was"""


def judge(pair: RecordPair, rule: Rule) -> PairVerdict:
    """The verdict on a pair.

    slower, faster, ambiguous, same: both sides have a number; see `Rule`.
    broke, fixed: only A, only B has a number. new, gone: only B, only A was asked.
    incomparable: both have a number, or one has, but for another request, mask or GPU. untimed: neither side has a number.
    """
    a, b = pair.a, pair.b
    if a is None:
        return PairVerdict("new")
    if b is None:
        return PairVerdict("gone")
    different = _different(a, b)
    if different:
        return PairVerdict("incomparable", different)
    if a.status != "ok" or b.status != "ok":
        if b.source:  # a published rate: nothing of ours was there before
            return PairVerdict("untimed", f"{a.status} here: {a.reason}")
        if a.status != "ok" and b.status != "ok":
            return PairVerdict("untimed", a.status if a.status == b.status else f"{a.status} → {b.status}")
        return PairVerdict("broke", f"{b.status}: {b.reason}") if a.status == "ok" else PairVerdict("fixed", f"was {a.status}: {a.reason}")
    speeds = _speeds(a, b, rule)
    if isinstance(speeds, str):
        return PairVerdict("incomparable", speeds)
    basis, one, other = speeds
    ratio = other.middle / one.middle
    if max(ratio, 1 / ratio) <= 1 + rule.tolerance:
        return PairVerdict("same", "", ratio, basis)
    if one.low <= other.high and other.low <= one.high:
        return PairVerdict("ambiguous", "", ratio, basis)
    return PairVerdict("faster" if ratio > 1 else "slower", "", ratio, basis)


def _different(a: Side, b: Side) -> str:
    """In what the two requests or their masks differ; "" if in nothing that is known."""
    if a.cell is not None and b.cell is not None:
        for name, word in {"dtype": "dtype", "head_dim": "head dim", "corpus": "corpus"}.items():
            one, other = getattr(a.cell, name), getattr(b.cell, name)
            if one != other:
                return f"another {word}: {one or 'none'}, {other or 'none'}"
    if a.digest and b.digest and a.digest != b.digest:
        return "another mask was drawn"
    return ""


def _speeds(a: Side, b: Side, rule: Rule) -> tuple[Basis, Spread, Spread] | str:
    """(basis, speed of A, speed of B), or why there are none. The same request on the same model of GPU is compared by time alone."""
    same_device = a.device == b.device != ""
    if same_device and a.time_ms and b.time_ms:
        return "time", _per_second(a.time_ms), _per_second(b.time_ms)
    if not (a.tflops and b.tflops):
        return f"another device, and no rate in TFLOP/s: {a.device or 'not known'}, {b.device or 'not known'}"
    if same_device or rule.by_rate:
        return "rate", a.tflops, b.tflops
    if a.share and b.share:
        return "share of peak", a.share, b.share
    unknown = a.device if a.share is None else b.device
    return f"another device, and no peak is known of {unknown or 'one of them'}"


def _per_second(time_ms: Spread) -> Spread:
    """Calls a second."""
    return Spread(1e3 / time_ms.high, 1e3 / time_ms.middle, 1e3 / time_ms.low)
