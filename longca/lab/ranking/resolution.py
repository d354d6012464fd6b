"""Resolutions: the differences that two measurements of the same thing show, by model of device, by their
relation, and by whether the GPU rested after each call of both.

Two medians that differ by less are not told apart. They are made from repeats of identical cells by `python
-m tools.repeats`; repeats in a user's own records widen them where these differ by more
(`Resolutions.widened`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import comb, expm1
from pathlib import Path
from typing import Any

from longca.lab.ranking.relation import RELATIONS, Relation, RepeatPair, words_of
from longca.lab.store.text import percent, plural

FILE = Path(__file__).with_name("repeats.json")
QUANTILE = 0.95  # of pairs of repeats, at most one in twenty is called different
ENOUGH = 100  # pairs from which the quantile is taken as it is; of fewer, an upper bound of it
BOUND = 0.9  # confidence of that bound
LEAST_PAIRS = 20  # of a relation: the 95th percentile of fewer would be beyond the largest
LEAST_PLAYED = 5  # halves of play-offs: of half the samples each, so that they differ by more than the whole
MIXED = "only one of the two was measured with rests, which can make a larger difference"
NOT_IN_FILE = ("is_own", "borrowed_by", "is_mixed", "is_foreign")  # they say how a resolution is used
DOUBT = 0.05  # probability below which a study's own repeats are worse than the known resolution allows


@dataclass(frozen=True)
class Resolution:
    """The resolution of one relation on one model of device, with rests or without."""

    device: str
    relation: Relation
    log_ratio: float
    """natural logarithm of the ratio of two medians up to which they are not told apart"""
    num_pairs: int
    common: float = 1.0
    """share of the variance that all cells of a pair of devices have in common, from 0 to 1: a mean over
    cells does not shrink it"""
    num_apart: int | None = None
    """pairs that the tie rule calls different by this resolution; None if not counted"""
    num_apart_held_out: int | None = None
    """the same by resolutions that were made without the pair"""
    rests: bool = False
    """both measurements of each pair are of calls after each of which the GPU rested"""
    is_own: bool = False
    """it is of the repeats in the study's own records"""
    borrowed_by: str = ""
    """for what it is used in place of its own, in words: too little is known of that; else "" """
    is_mixed: bool = False
    """it is used for two measurements of which only one is of calls with rests"""
    is_foreign: bool = False
    """its repeats are of another model of device, since too few are known of this one"""

    @property
    def percent(self) -> str:
        """The largest difference that means nothing: "3.8 %"."""
        return percent(expm1(self.log_ratio))

    def of_mean(self, count: float) -> float:
        """The logarithm for a mean over so many cells."""
        return self.log_ratio * (self.common + (1 - self.common) / count) ** 0.5

    def __str__(self) -> str:
        device = f" ({self.device})" if self.device else ""
        origin = f"{plural(self.num_pairs, 'repeat')} on {words_of(self.relation, self.rests)}{device}"
        own = " of this study" if self.is_own else ""
        borrowed = f"; too few are known of {self.borrowed_by}" if self.borrowed_by else ""
        mixed = f"; {MIXED}" if self.is_mixed else ""
        return f"{self.percent}, from {origin}{own}{borrowed}{mixed}"


@dataclass(frozen=True)
class Resolutions:
    """All that is known, for each model of device and relation, with rests and without."""

    entries: tuple[Resolution, ...]

    def __deepcopy__(self, memo: Any) -> Resolutions:
        """It never changes. Frames that carry it in their attributes copy these with each selection."""
        return self

    @staticmethod
    def known() -> Resolutions:
        """Those that come with the package."""
        return _known()

    def of(self, device: str, relation: Relation, rests: bool = False) -> Resolution:
        """The resolution of a relation on a model of device.

        If there are too few repeats of a relation, the resolution of the next wider relation on that model
        is used. For calls with rests, and if no wider relation is known either, it is that of calls without
        rests. If the model has no resolution at all, the widest one of any model is used, and `borrowed_by`
        says so. Across two models, the widest one is used as well.

        Args:
            rests: both measurements are of calls with rests.
        """
        by_key = {(entry.device, entry.relation, entry.rests): entry for entry in self.entries}
        words = words_of(relation, rests)
        for rested in (True, False) if rests else (False,):
            for wider in RELATIONS[RELATIONS.index(relation) :] if relation in RELATIONS else ():
                entry = by_key.get((device, wider, rested))
                if entry is not None:
                    return entry if (wider, rested) == (relation, rests) else _borrowed(entry, words)
        widest = max(self.entries, key=lambda entry: entry.log_ratio)
        is_known = relation not in RELATIONS and any(entry.device == device for entry in self.entries)
        borrowed = _borrowed(widest, f"{words}{f' ({device})' if device else ''}")
        return replace(borrowed, is_foreign=not is_known)

    def widened(self, pairs: Iterable[RepeatPair]) -> Resolutions:
        """The same with the repeats of a study, which count where more than one in twenty differ by more than
        is known and than their own samples explain: one cell whose samples scatter widens no limit but its
        own.

        If nothing is known of the model for a relation, twenty repeats of the study or more are its
        resolution, in place of another model's.

        If no resolution of play-offs is known, repeats of the study itself are used if they differ less
        than the next wider relation, or if no relation is known by the same protocol: calls that alternate
        differ least.
        """
        groups: dict[tuple[str, Relation, bool], list[RepeatPair]] = defaultdict(list)
        for pair in pairs:
            groups[pair.first.device, pair.relation, pair.rests].append(pair)
        own = [resolution for key, members in groups.items() if (resolution := self._of_study(*key, members))]
        replaced = {(entry.device, entry.relation, entry.rests) for entry in own}
        kept = [
            entry for entry in self.entries if (entry.device, entry.relation, entry.rests) not in replaced
        ]
        return Resolutions(tuple(_at_least(entry, own) for entry in (*kept, *own))) if own else self

    def _of_study(
        self, device: str, relation: Relation, rests: bool, pairs: Sequence[RepeatPair]
    ) -> Resolution | None:
        known = self.of(device, relation, rests)
        ratios = [pair.log_ratio for pair in pairs]
        own = Resolution(device, relation, upper_quantile(ratios), len(ratios), rests=rests, is_own=True)
        if relation == "play-off" and known.borrowed_by and len(ratios) >= LEAST_PLAYED:
            is_strange = known.rests != rests or known.device != device
            if is_strange or own.log_ratio < known.log_ratio:
                return own
        if known.is_foreign and len(ratios) >= LEAST_PAIRS:
            return own
        unexplained = [0.0 if pair.is_explained else pair.log_ratio for pair in pairs]
        beyond = sum(ratio > known.log_ratio for ratio in unexplained)
        if is_plausible(len(ratios), beyond):
            return None
        return replace(own, log_ratio=max(upper_quantile(unexplained), known.log_ratio))

    def as_json(self) -> list[dict[str, Any]]:
        """For the file of the package."""
        return [
            {key: value for key, value in asdict(entry).items() if key not in NOT_IN_FILE}
            for entry in self.entries
        ]


def upper_quantile(values: Sequence[float]) -> float:
    """The 95th percentile of values; of fewer than 100 an upper bound of it (90 %), and the largest where
    that would be beyond."""
    ordered = sorted(values)
    count = len(ordered)
    if count >= ENOUGH:
        position = QUANTILE * (count - 1)
        index = int(position)
        return ordered[index] + (ordered[min(index + 1, count - 1)] - ordered[index]) * (position - index)
    below = 0.0
    for index in range(count):
        below += comb(count, index) * QUANTILE**index * (1 - QUANTILE) ** (count - index)
        if below >= BOUND:
            return ordered[index]
    return ordered[-1]


def is_plausible(count: int, beyond: int) -> bool:
    """True if chance explains that so many of `count` repeats differ by more than nineteen in twenty do."""
    return _tail(count, beyond) >= DOUBT


def _tail(count: int, beyond: int) -> float:
    """The probability that so many or more of `count` pairs differ by more than nineteen in twenty do."""
    miss = 1 - QUANTILE
    return 1 - sum(comb(count, index) * miss**index * QUANTILE ** (count - index) for index in range(beyond))


def _at_least(entry: Resolution, own: Sequence[Resolution]) -> Resolution:
    """The entry, raised to that of a closer relation of the study itself: farther ones differ more, and so do
    calls without rests."""
    position = RELATIONS.index(entry.relation)
    closer = [
        other
        for other in own
        if other.device == entry.device
        and RELATIONS.index(other.relation) <= position
        and other.rests >= entry.rests
        and other.log_ratio > entry.log_ratio
    ]
    if not closer:
        return entry
    largest = max(closer, key=lambda other: other.log_ratio)
    return replace(entry, log_ratio=largest.log_ratio, num_pairs=largest.num_pairs, is_own=True)


def _borrowed(entry: Resolution, what: str) -> Resolution:
    return replace(entry, borrowed_by=what)


@lru_cache(maxsize=1)
def _known() -> Resolutions:
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return Resolutions(tuple(Resolution(**entry) for entry in content["resolutions"]))
