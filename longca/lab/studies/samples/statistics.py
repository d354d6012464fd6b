"""Statistics of a measurement's samples: the time of each call over all ranks, medians, spread and drift."""

from collections.abc import Callable
from functools import cached_property
from statistics import median

from longca.lab.studies.record import Samples
from longca.lab.studies.samples import (
    MedianInterval,
    drift,
    median_bounds,
    median_interval,
    median_precision,
    shift,
)

NOISY = 0.1  # IQR/median above which a cell counts as noisy (undisturbed cells stay below)


class Times:
    """Statistics of samples, each computed when it is asked for; None without samples."""

    def __init__(self, samples: Samples | None) -> None:
        self.samples = samples

    @cached_property
    def times_ms(self) -> tuple[float, ...] | None:
        """The slowest rank's time of each iteration, since a step ends with its last rank."""
        return self._over_ranks(max)

    @cached_property
    def mean_times_ms(self) -> tuple[float, ...] | None:
        """The mean time of the ranks for each iteration."""
        return self._over_ranks(lambda ranks: sum(ranks) / len(ranks))

    @cached_property
    def rank_medians_ms(self) -> tuple[float, ...] | None:
        """Each rank's median time; None on one device."""
        if self.samples is None or len(self.samples.time_ms) < 2:
            return None
        return tuple(float(median(times)) for times in self.samples.time_ms)

    @property
    def straggler_percent(self) -> float | None:
        """The delay of the slowest rank's median relative to the median rank, in percent."""
        times = self.rank_medians_ms
        return None if times is None else 100 * (max(times) / float(median(times)) - 1)

    @property
    def slowest_rank(self) -> int | None:
        times = self.rank_medians_ms
        return None if times is None else times.index(max(times))

    @cached_property
    def quartiles_ms(self) -> tuple[float | None, ...]:
        """(minimum, first quartile, median, third quartile) of the times, interpolated between samples."""
        if self.times_ms is None:
            return None, None, None, None
        times = sorted(self.times_ms)
        return tuple(_quantile(times, share) for share in (0.0, 0.25, 0.5, 0.75))

    @cached_property
    def bounds_of_median_ms(self) -> MedianInterval | None:
        """The 95 % interval of the median, or the range of few samples; None without times."""
        return None if self.times_ms is None else median_bounds(self.times_ms)

    @property
    def median_ms(self) -> float | None:
        return self.quartiles_ms[2]

    @property
    def noise(self) -> float | None:
        """Interquartile range over median."""
        _, low, middle, high = self.quartiles_ms
        return (high - low) / middle if low is not None and middle and high is not None else None

    @property
    def is_noisy(self) -> bool:
        """True if the samples spread more than those of undisturbed calls."""
        return self.noise is not None and self.noise > NOISY

    @cached_property
    def interval_ms(self) -> MedianInterval | None:
        """The 95 % interval of the median time; None for fewer than six samples."""
        return None if self.times_ms is None else median_interval(self.times_ms)

    @property
    def precision_percent(self) -> float | None:
        """The distance from the median to the farther end of its interval, in percent of the median."""
        precision = None if self.times_ms is None else median_precision(self.times_ms)
        return None if precision is None else 100 * precision

    @cached_property
    def drift(self) -> str:
        """The drift of the samples in the order of measurement: see `longca.lab.studies.samples.drift`; ""
        without samples."""
        return "" if self.times_ms is None else drift(self.times_ms)

    @property
    def drift_percent(self) -> float | None:
        """The slowdown of the last third of the samples relative to the first, in percent of the median."""
        change = None if self.times_ms is None else shift(self.times_ms)
        return None if change is None else 100 * change

    @property
    def is_drifting(self) -> bool:
        return self.drift in ("rising", "falling")

    def _over_ranks(self, reduce: Callable[[tuple[float, ...]], float]) -> tuple[float, ...] | None:
        if self.samples is None:
            return None
        if len(self.samples.time_ms) == 1:
            return self.samples.time_ms[0] or None
        return (
            tuple(map(reduce, zip(*self.samples.time_ms, strict=False))) or None
        )  # the shortest list counts


def _quantile(ordered: list[float], share: float) -> float:
    """The interpolated quantile, bit-identical to numpy's `percentile` and much faster for few values."""
    position = share * (len(ordered) - 1)
    index = int(position)
    low = ordered[index]
    high = ordered[min(index + 1, len(ordered) - 1)]
    part = position - index
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part
