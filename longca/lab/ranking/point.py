"""Points: one method in one setting, as methods are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.resolution import Resolutions


@dataclass(frozen=True)
class MeasuredPoint:
    """One method in one setting, all seeds of its mask together. All its measurements are of one model of
    device."""

    method: str
    measurements: tuple[Measurement, ...]
    """one for each seed; of the present protocol and the earlier one together, where seeds differ in it"""
    playoffs: tuple[Measurement, ...] = ()
    """those of its play-offs, at most one for each seed and protocol"""
    resolutions: Resolutions | None = None
    """by which it is told apart, with what the repeats of its own study say; those of the package if None"""

    def __post_init__(self) -> None:
        if not self.measurements and not self.playoffs:
            raise ValueError(f"a point of {self.method} without measurements")
        if len({record.device for record in (*self.measurements, *self.playoffs)}) > 1:
            raise ValueError(f"a point of {self.method} on several models of devices")

    @property
    def device(self) -> str:
        return self.best_known[0].device

    @property
    def best_known(self) -> tuple[Measurement, ...]:
        """The measurements of its play-offs, or its own without any."""
        return self.playoffs or self.measurements

    @cached_property
    def rate(self) -> float:
        """The median over seeds."""
        return median(record.rate for record in self.best_known)

    @cached_property
    def own_rate(self) -> float:
        """The same of the cells measured by themselves."""
        return median(record.rate for record in self.measurements) if self.measurements else self.rate

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The devices that measured it, each once."""
        return tuple(sorted({record.unit for record in self.best_known}))

    @property
    def noise(self) -> float:
        """That of its least steady measurement."""
        return max(record.noise for record in self.best_known)

    @property
    def disturbed(self) -> bool:
        return any(record.disturbed for record in self.best_known)

    def by_itself(self) -> MeasuredPoint:
        """The point without its play-offs; itself if there is nothing else."""
        return replace(self, playoffs=()) if self.measurements else self
