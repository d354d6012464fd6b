"""Rounds: the calls of several players, timed in turn, until their order is decided.

All players of a round meet the same clock, temperature and neighbours, within milliseconds. So the ratio of
two times of one round is known better than either time. Each round has another order, in which over some
rounds every player follows every other one equally often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from longca.lab.bench.measure.nvml import Telemetry
from longca.lab.bench.measure.timing.stopwatch import Repeated, Stopwatch
from longca.lab.studies.playoff.rules import PlayoffRules
from longca.lab.studies.playoff.turns import Ending
from longca.lab.studies.samples import median_interval


@dataclass
class Seat:
    """A player at the table."""

    name: str
    call: Repeated
    stopwatch: Stopwatch
    telemetry: Telemetry
    times_ms: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """number of each sample: see `longca.lab.studies.playoff.turns.Turns`"""
    num_warm: int = 0
    error: Exception | None = None
    """raised by one of its calls; it has left then"""


@dataclass(frozen=True)
class Rounds:
    """Rounds that were played."""

    count: int
    ending: Ending


def play_rounds(
    seats: Sequence[Seat],
    rules: PlayoffRules,
    warmup: int,
    *,
    num_players: int,
    first_round: int = 0,
    begin: Callable[[Seat], object] = lambda seat: None,
    must_end: Callable[[Exception], bool] = lambda error: False,
    rest: Callable[[float], object] = lambda time_ms: None,
    now: Callable[[], float] = time.monotonic,
) -> Rounds:
    """Warm-up rounds, then timed ones, until the order is decided or a limit is met. A player whose call
    raises leaves.

    Args:
        seats: the players, those that are thought to be the fastest first.
        warmup: untimed rounds, at least one: to prepare one player may discard what another has compiled.
        num_players: of the whole play-off, by which turns are numbered.
        first_round: number of the first timed round.
        begin: called before each call, for whoever must know which player a process died of.
        must_end: True for an error after which the others must not go on. It is then raised.
        rest: lets the device rest after a call of so many ms, before the next player's.
        now: seconds, for the limit.
    """
    orders = balanced_orders(len(seats))

    def turn(seat: Seat, call: Callable[[Seat], object]) -> None:
        begin(seat)
        try:
            call(seat)
        except Exception as error:  # any kernel may raise anything
            if must_end(error):
                raise
            seat.error = error

    for number in range(max(warmup, 1)):
        for index in orders[number % len(orders)]:
            if seats[index].error is None:
                turn(seats[index], partial(_warm, rest=rest))
    start = now()
    count = 0
    while (ending := _ending(seats, rules, count, now() - start)) is None:
        first = (first_round + count) * num_players
        active = [seats[index] for index in orders[count % len(orders)] if seats[index].error is None]
        for number, seat in enumerate(active):
            turn(seat, partial(_sample, turn=first + number, rest=rest))
        count += 1
    return Rounds(count, ending)


def balanced_orders(count: int) -> list[list[int]]:
    """Orders of `count` players in which each directly follows each other one equally often: Williams's Latin
    squares."""
    first = [0]
    low = 1
    high = count - 1
    while low <= high:
        first.append(low)
        if low < high:
            first.append(high)
        low = low + 1
        high = high - 1
    squares = [[(index + shift) % count for index in first] for shift in range(count)]
    return squares if count % 2 == 0 else [order for square in squares for order in (square, square[::-1])]


def ratio_interval(times_ms: Sequence[float], first_ms: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median ratio of two players' times of the same rounds, of which there are six
    or more."""
    low, high = median_interval(  # pyright: ignore[reportGeneralTypeIssues] - None for fewer than six
        [math.log(time_ms / of_first) for time_ms, of_first in zip(times_ms, first_ms, strict=True)]
    )
    return math.exp(low), math.exp(high)


def is_decided(times_ms: Sequence[Sequence[float]], rules: PlayoffRules) -> bool:
    """True if the ratio of each player's time to the shortest is known well enough, or is far enough above 1.

    Args:
        times_ms: of each player, of the same rounds.
    """
    first = min(times_ms, key=median)
    return all(
        _is_known(*ratio_interval(of_player, first), rules)
        for of_player in times_ms
        if of_player is not first
    )


def _is_known(low: float, high: float, rules: PlayoffRules) -> bool:
    return low >= 1 + rules.apart or high <= low * (1 + rules.precision) ** 2


def _ending(seats: Sequence[Seat], rules: PlayoffRules, count: int, seconds: float) -> Ending | None:
    times_ms = [seat.times_ms for seat in seats if seat.error is None]
    if len(times_ms) < 2:
        return "decided"
    if count < rules.min_rounds:
        return None
    if is_decided([of_player[-count:] for of_player in times_ms], rules):
        return "decided"
    if count >= rules.max_rounds:
        return "rounds"
    return "time" if seconds > rules.max_seconds else None


def _warm(seat: Seat, rest: Callable[[float], object]) -> None:
    seat.call.before()
    start = time.perf_counter()
    seat.stopwatch.warm(seat.call)
    seconds = time.perf_counter() - start
    seat.call.after(timed=False)
    seat.num_warm += 1
    rest(1e3 * seconds)


def _sample(seat: Seat, turn: int, rest: Callable[[float], object]) -> None:
    seat.call.before()
    seat.stopwatch.ready()
    time_ms = seat.stopwatch.time_ms(seat.call, seat.telemetry.read)
    seat.call.after(timed=True)
    seat.telemetry.end_call()
    seat.times_ms.append(time_ms)
    seat.turns.append(turn)
    rest(time_ms)
