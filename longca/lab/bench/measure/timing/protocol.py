"""The protocol of timed calls: when a device is warm, and when there are enough samples. Pure: it sees times
and clocks, and no device.

`docs/design/measuring.md` states it for readers, with what it was designed on.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Literal

from longca.lab.studies import Measure
from longca.lab.studies.samples import median_precision, trend_chance

MIN_SAMPLES = 3  # whatever the time
# from one look at the interval of the median to the next: a look at each sample would end where it is narrow
# by chance
GROWTH = 1.5
BLOCKS = ((4, 0.25), (2, 0.5), (1, 1.0))  # calls and seconds that fill a block: any of these
# times as long are blocks of calls that do not rest: a power controller answers after a second
WITHOUT_RESTS = 4
FLAT_SHARE = 0.01  # of the median time or clock, between blocks: a step of the SM clock is as large
# calls that differ by more are flat all the same where so many show no trend at this level
TREND_LEVEL = 0.05
FEWEST_FOR_TREND = 8
# of the cell's timeout: its least warm-up calls, and all its calls, end there
WARM_SHARE = 0.25
TIMED_SHARE = 0.5

Stopped = Literal["repeats", "precision", "time"]


class Steadiness:
    """The test that a device has become steady, by its last calls.

    Calls are put into blocks: of a GPU each has four calls and 0.25 s, or two and 0.5 s, or one and 1 s,
    pauses included (times four where calls do not rest); of a CPU four calls. The device is steady when the
    last two blocks agree, in call times and in SM
    clocks: their medians differ by at most 1 %, or both together have eight calls or more without a trend
        (Mann and Kendall, 5 %). Of
    fewer calls clocks are too coarse to count.
    """

    def __init__(self, start_s: float, *, has_controller: bool, rests: bool = True) -> None:
        """
        Args:
            start_s: moment at which the first call began, in s.
            has_controller: a power controller needs time to answer: blocks have a least length.
            rests: the device rests after each call.
        """
        scale = 1 if rests else WITHOUT_RESTS
        self._fillings = (
            [(calls, scale * seconds) for calls, seconds in BLOCKS]
            if has_controller
            else [(BLOCKS[0][0], 0.0)]
        )
        self._last: _Block | None = None
        self._block = _Block(start_s)
        self.is_steady = False

    def add(self, time_ms: float, clock_mhz: float | None, at_s: float) -> None:
        """Add a call that has ended.

        Args:
            clock_mhz: SM clock while it ran; None where there is none.
            at_s: moment of its end, in s.
        """
        block = self._block
        block.times_ms.append(time_ms)
        if clock_mhz is not None:
            block.clocks_mhz.append(clock_mhz)
        calls = len(block.times_ms)
        seconds = at_s - block.start_s
        if not any(calls >= least and seconds >= long for least, long in self._fillings):
            return
        self.is_steady = self._last is not None and _agree(self._last, block)
        self._last, self._block = block, _Block(at_s)


class _Block:
    """Calls that follow each other."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.times_ms: list[float] = []
        self.clocks_mhz: list[float] = []


def _agree(first: _Block, second: _Block) -> bool:
    clocks = len(first.clocks_mhz) + len(second.clocks_mhz)
    if clocks >= FEWEST_FOR_TREND and not _is_flat(first.clocks_mhz, second.clocks_mhz):
        return False
    return _is_flat(first.times_ms, second.times_ms)


def _is_flat(first: list[float], second: list[float]) -> bool:
    before = median(first)
    after = median(second)
    if abs(after - before) <= FLAT_SHARE * before:
        return True
    both = first + second
    return len(both) >= FEWEST_FOR_TREND and trend_chance(both) >= TREND_LEVEL


def rest_seconds(time_ms: float, duty: float) -> float:
    """The pause after a call of that length that keeps a device busy for at most the share `duty` of the
    time, in s."""
    return time_ms / 1e3 * (1 / duty - 1)


def least_warm_up_seconds(measure: Measure) -> float:
    """The time after which even the least number of warm-up calls ends, in s."""
    return min(WARM_SHARE * measure.timeout_s, math.inf if measure.precision else measure.max_seconds)


def ended(times_ms: list[float], measure: Measure, *, is_late: bool, is_overdue: bool) -> Stopped | None:
    """The reason why the samples end now; None if they go on. All ranks that see the same times get the same
    answer.

    Args:
        times_ms: samples so far, in ms; of several ranks the slowest of each iteration.
        is_late: `measure.max_seconds` are over.
        is_overdue: so much of the cell's timeout is over that even the least number of samples would endanger
            it.
    """
    count = len(times_ms)
    if count < measure.repeats:
        is_over = is_overdue or (is_late and not measure.precision)
        return "time" if is_over and count >= MIN_SAMPLES else None
    if not measure.precision:
        return "repeats"
    if is_look(count, measure.repeats) or count >= measure.most_repeats:
        precision = median_precision(times_ms)
        if precision is not None and precision <= measure.precision:
            return "precision"
    if count >= measure.most_repeats:
        return "repeats"
    return "time" if is_late or is_overdue else None


def is_look(count: int, first: int) -> bool:
    """True if the interval of the median is looked at after so many samples: after the first ones, and then
    after half as many again."""
    look = max(first, 1)
    while look < count:
        look = max(math.ceil(look * GROWTH), look + 1)
    return look == count
