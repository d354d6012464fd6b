"""Measurements: what one record says of the speed of its cell, and where and when it was made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from longca.lab.studies.samples import median_bounds

ABSENT = "unavailable"  # the status of a method that is not installed: it was not asked what it can do


@dataclass(frozen=True)
class Measurement:
    """One measured cell. Rates are in any unit that is the same for all that are compared; higher is
    better."""

    rate: float
    """at the median time; above 0"""
    low: float
    high: float
    """the rate's 95 % interval; equal to the rate where it is not known"""
    device: str = ""
    """model of the GPU, or of the CPU"""
    unit: str = ""
    """the device itself: the UUIDs of its GPUs, or the host of a CPU; "" if not known"""
    run: str = ""
    playoff: str = ""
    """id of the play-off in which its calls alternated with others'; "" for a cell measured by itself"""
    rounds: tuple[float, ...] = field(default=(), repr=False)
    """of a play-off: the round of each sample; of all players one sample a round, in this order, if empty"""
    seed: int = 0
    cell_id: str = ""
    version: str = ""
    """method version: equal where the same code made both numbers"""
    times_ms: tuple[float, ...] = field(default=(), repr=False)
    """samples in their order; empty if not known"""
    noise: float = 0.0
    """interquartile range over median"""
    disturbed: bool = False
    """others used the device meanwhile"""
    rests: bool = False
    """the GPU rested after each call"""
    parts: tuple[Measurement, ...] = field(default=(), repr=False)
    """of a total (`longca.lab.ranking.total`): the measurements whose times add up"""

    @property
    def num_cells(self) -> int:
        return len(self.parts) or 1

    @property
    def num_samples(self) -> int:
        return sum(part.num_samples for part in self.parts) if self.parts else len(self.times_ms)

    @property
    def num_independent(self) -> float:
        """The number of equal cells whose sum varies as much as a total does, if each cell varies by itself:
        from 1, where one part takes nearly all of the time, to the number of parts."""
        times = [median(part.times_ms) for part in self.parts]
        return sum(times) ** 2 / sum(time * time for time in times) if times else 1.0

    @classmethod
    def timed(cls, times_ms: Collection[float], work: float = 1e3, **facts: Any) -> Measurement:
        """A measurement of samples in ms: its rate is work over time, by default calls a second."""
        times = tuple(times_ms)
        shortest, longest = median_bounds(times)
        return cls(work / median(times), work / longest, work / shortest, times_ms=times, **facts)

    @classmethod
    def at_rate(cls, rate: float, times_ms: Collection[float], **facts: Any) -> Measurement:
        """A measurement of that rate, in any unit, with the interval that its samples in ms give; without
        samples there is none."""
        if not times_ms:
            return cls(rate, rate, rate, **facts)
        timed = cls.timed(times_ms)
        scale = rate / timed.rate
        return cls(rate, scale * timed.low, scale * timed.high, times_ms=timed.times_ms, **facts)
