"""The verdict on one pair of results: faster, slower, or why neither is established."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from longca.lab.compare.pairs import RecordPair
from longca.lab.compare.side import Side
from longca.lab.ranking import LEAST_PAIRS, Lead, MeasuredPoint, Measurement, Resolutions, compare

OutcomeOfPair = Literal[
    "slower", "broke", "faster", "fixed", "ambiguous", "same", "new", "gone", "incomparable", "untimed"
]
OUTCOMES: tuple[OutcomeOfPair, ...] = get_args(OutcomeOfPair)
TIMED = ("faster", "slower", "same", "ambiguous")
TODO = (
    "Run the study again on that device and give all files of a side, `longca compare A1,A2 B1,B2`; or say "
    "with `--tolerance 10%` how much repeats differ"
)
TOO_FEW = "too few repeats of this model of device are known"
Basis = Literal["time", "rate", "share of peak"]


@dataclass(frozen=True)
class Rule:
    """Rules for pairs, in addition to those of `longca.lab.ranking`.

    Two speeds are the same if they differ by no more than repeats of one cell do: on the same device in two
    runs, or on another device of the model. Repeats on another model of device say nothing about this one:
    where too few are known, the user's tolerance stands in, and without one nothing is told apart. Otherwise
    they are ambiguous if they tie by their own samples (or
    by the reading error of a published rate). Otherwise B is faster or slower. Swapping A and B only swaps
    faster and slower.
    """

    tolerance: float | None = None
    """speeds within this difference are the same even if they do not tie: the larger over the smaller, minus
    1"""
    by_rate: bool = False
    """compare rates directly, even across GPU models"""


@dataclass(frozen=True)
class PairVerdict:
    """The outcome of a pair."""

    outcome: OutcomeOfPair
    why: str = ""
    """reason of broken, fixed, incomparable and untimed pairs"""
    basis: Basis | None = None
    """the compared quantity; None without a comparison"""
    lead: Lead | None = None
    """speed of B over that of A, with its meaning"""

    @property
    def is_open(self) -> bool:
        """True if too few repeats are known to tell the two apart or to call them the same."""
        return self.lead is not None and math.isinf(self.lead.log_resolution)

    @property
    def ratio(self) -> float | None:
        return self.lead.ratio if self.lead else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. `ratio_low` and `ratio_high` are bounds by repeats and samples."""
        lead = self.lead
        bounded = None if self.is_open else lead
        return {
            "outcome": self.outcome,
            "why": self.why,
            "ratio": self.ratio,
            "basis": self.basis,
            "ratio_low": bounded and bounded.low,
            "ratio_high": bounded and bounded.high,
            "relation": lead and lead.relation,
            "resolution": bounded and math.expm1(bounded.log_resolution),
        }


def unknown_text(count: str, what: str, rule: Rule) -> str:
    """One line on results for which too few repeats are known, and what to do.

    Args:
        count: how many results, in words.
        what: the relation and the device of which too few are known.
    """
    told = "not told apart" if rule.tolerance is None else "judged by --tolerance alone"
    return f"{told}, {count}: fewer than {LEAST_PAIRS} repeats are known of {what}. {TODO}"


def judge(pair: RecordPair, rule: Rule, resolutions: Resolutions | None = None) -> PairVerdict:
    """The verdict on a pair, by these resolutions, or by those of the package if none are given.

    slower, faster, ambiguous, same: both sides have a number; see `Rule`.
    broke, fixed: only A, only B has a number. new, gone: only B, only A was asked.
    incomparable: both have a number, or one has, but for another request, mask or GPU, or calls of one side
    alone had rests.
    untimed: neither side has a number.
    """
    a = pair.a
    b = pair.b
    if a is None:
        return PairVerdict("new")
    if b is None:
        return PairVerdict("gone")
    different = _different(a, b) or _rested_alone(a, b)
    if different:
        return PairVerdict("incomparable", different)
    if a.status != "ok" or b.status != "ok":
        if b.source:  # a published rate: there is no earlier record
            return PairVerdict("untimed", f"{a.status} here: {a.reason}")
        if a.status != "ok" and b.status != "ok":
            return PairVerdict("untimed", a.status if a.status == b.status else f"{a.status} → {b.status}")
        return (
            PairVerdict("broke", f"{b.status}: {b.reason}")
            if a.status == "ok"
            else PairVerdict("fixed", f"was {a.status}: {a.reason}")
        )
    found = _lead(a, b, rule, resolutions)
    if isinstance(found, str):
        return PairVerdict("incomparable", found)
    basis, lead = found
    if lead.resolution.is_foreign:
        stated = math.inf if rule.tolerance is None else math.log1p(rule.tolerance)
        lead = replace(lead, log_resolution=stated)
    if math.isinf(lead.log_resolution) and lead.log_ratio:
        return PairVerdict("ambiguous", TOO_FEW, basis, lead)
    if abs(lead.log_ratio) <= max(lead.log_resolution, math.log1p(rule.tolerance or 0.0)):
        return PairVerdict("same", "", basis, lead)
    if lead.is_tie:
        return PairVerdict("ambiguous", "", basis, lead)
    return PairVerdict("faster" if lead.order == "more" else "slower", "", basis, lead)


def _different(a: Side, b: Side) -> str:
    """The differences of the two requests or their masks; "" if none is known."""
    if a.cell is not None and b.cell is not None:
        for name, word in {"dtype": "dtype", "head_dim": "head dim", "corpus": "corpus"}.items():
            own = getattr(a.cell, name)
            other = getattr(b.cell, name)
            if own != other:
                return f"another {word}: {own or 'none'}, {other or 'none'}"
    if a.digest and b.digest and a.digest != b.digest:
        return "another mask was sampled"
    return ""


def _rested_alone(a: Side, b: Side) -> str:
    """The side whose calls alone had rests of the GPU; "" if both had, neither had, or it is not known."""
    if {a.rests, b.rests} != {True, False}:
        return ""
    return f"calls of {'A' if a.rests else 'B'} alone had rests of the GPU"


def _lead(a: Side, b: Side, rule: Rule, known: Resolutions | None) -> tuple[Basis, Lead] | str:
    """(basis, lead of B over A), or the reason for a missing lead. On the same GPU model, times are
    compared."""
    measured = a.measurement
    other = b.measurement
    same_device = a.device == b.device != ""
    if same_device and measured and other and a.time_ms and b.time_ms:
        return "time", _compared(
            _by_time(measured, a.time_ms.middle), _by_time(other, b.time_ms.middle), known
        )
    if not (measured and other and a.tflops and b.tflops):
        return f"another device, and no rate in TFLOP/s: {a.device or 'not known'}, {b.device or 'not known'}"
    if same_device or rule.by_rate:
        return "rate", _compared(measured, other, known)
    if a.peak_tflops and b.peak_tflops:
        return "share of peak", _compared(
            _scaled(measured, 1 / a.peak_tflops), _scaled(other, 1 / b.peak_tflops), known
        )
    unknown = b.device if a.peak_tflops else a.device
    todo = "add it to config/hardware.yaml, or compare rates with --by-rate"
    return f"another device, and no peak is known of {unknown or 'one of them'}: {todo}"


def _compared(a: Measurement, b: Measurement, known: Resolutions | None) -> Lead:
    return compare(MeasuredPoint("B", (b,)), MeasuredPoint("A", (a,)), known)


def _by_time(measured: Measurement, time_ms: float) -> Measurement:
    """The same in calls per second."""
    return _scaled(measured, 1e3 / time_ms / measured.rate)


def _scaled(measured: Measurement, factor: float) -> Measurement:
    return replace(
        measured, rate=measured.rate * factor, low=measured.low * factor, high=measured.high * factor
    )
