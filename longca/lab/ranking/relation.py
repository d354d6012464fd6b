"""Relations of two measurements: the closer they belong together, the smaller the differences that mean
something."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from longca.lab.ranking.measurement import Measurement

Relation = Literal["play-off", "run", "device", "model", "other model"]
RELATIONS: tuple[Relation, ...] = ("play-off", "run", "device", "model")
"""from the closest to the farthest; two models of devices are beyond all of them and are never ranked
together"""
WORDS: dict[Relation, str] = {
    "play-off": "alternating calls in one process",
    "run": "one device in one run",
    "device": "one device in two runs",
    "model": "two devices of one model",
    "other model": "devices of two models",
}


def words_of(relation: Relation, rests: bool) -> str:
    """A relation and the protocol of both measurements in words: "one device in two runs, with rests"."""
    return f"{WORDS[relation]}{', with rests' if rests else ''}"


def relation_of(first: Measurement, second: Measurement) -> Relation:
    """The closest relation that is known of two measurements. Where a device is not known, another one is
    assumed."""
    if first.device != second.device:
        return "other model"
    if first.playoff and first.playoff == second.playoff:
        return "play-off"
    if not first.unit or first.unit != second.unit:
        return "model"
    return "run" if first.run and first.run == second.run else "device"


def widest(relations: list[Relation]) -> Relation:
    """The farthest of these relations, of which there is at least one."""
    return max(relations, key=(*RELATIONS, "other model").index)


@dataclass(frozen=True)
class RepeatPair:
    """Two measurements of one cell on devices of one model: A/A, so that their difference means nothing."""

    first: Measurement
    second: Measurement
    relation: Relation
    sample_log_ratio: float = 0.0
    """`log_ratio` up to which their own samples do not tell them apart"""

    @property
    def rests(self) -> bool:
        """Both are of calls after each of which the GPU rested."""
        return self.first.rests and self.second.rests

    @property
    def log_ratio(self) -> float:
        """Absolute value of the natural logarithm of the ratio of their medians."""
        return abs(log(self.first.rate / self.second.rate))

    @property
    def is_explained(self) -> bool:
        """True if the scatter of their own samples explains the difference, which the tie rule counts by
        itself."""
        return self.log_ratio <= self.sample_log_ratio
