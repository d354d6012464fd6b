"""A play-off measured in one process: every player prepared and checked, rounds of alternating calls, every
player checked again.

Where the memory of all players together does not fit, the first one plays against each of the others, two at
a time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from longca.lab.bench.check.judge import Judge
from longca.lab.bench.check.plan import CheckPlan
from longca.lab.bench.measure.failure import failure
from longca.lab.bench.measure.kernel import KernelMeasurement
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.measurement import Referee
from longca.lab.bench.measure.nvml import Gpu, Telemetry, open_gpu
from longca.lab.bench.measure.result import PlayerResult, Result
from longca.lab.bench.measure.timing.protocol import rest_seconds
from longca.lab.bench.measure.timing.stopwatch import CudaStopwatch, HostStopwatch
from longca.lab.bench.playoff.answer import NO_RIVAL
from longca.lab.bench.playoff.rounds import Rounds, Seat, play_rounds
from longca.lab.studies import Cell, Measure, OutOfMemory
from longca.lab.studies.outcome import Outcome
from longca.lab.studies.playoff.rules import PlayoffRules
from longca.lab.studies.playoff.turns import Ending, Turns
from longca.lab.studies.record import Samples


@dataclass(frozen=True)
class PlayoffSetup:
    """The circumstances that all players of a play-off share."""

    device: torch.device
    measure: Measure
    rules: PlayoffRules
    seed: int
    masks: LatestMasks
    references: LatestReferences
    begin: Callable[[int], object]
    """told which player is at work, before anything of it runs"""
    referee: Callable[[int], Referee] | None = None
    """the judge of the player of a number; in this process, where a kernel can reach it, if not given"""

    @property
    def duty(self) -> float | None:
        """Most of the time that calls keep the device busy; None where it does not rest."""
        return self.measure.duty if self.device.type == "cuda" and self.measure.duty < 1 else None

    def judge(self, player: int, plan: CheckPlan) -> Referee:
        """The judge of one player."""
        return Judge(plan, self.references.get(plan)) if self.referee is None else self.referee(player)


def measure_playoff(cells: Sequence[Cell], setup: PlayoffSetup) -> list[PlayerResult]:
    """The results of all players, in the order of their cells. An error of a player becomes its outcome.

    Args:
        cells: of one case; the player that is thought to be the fastest comes first.

    Raises:
        DeviceLost: an error of one player has left the device unusable for all.
    """
    with open_gpu(setup.device) as gpu:
        return _Playoff(cells, setup, gpu).run()


class DeviceLost(Exception):
    """The device computes no more in this process after a call of one player; its outcome says why."""

    def __init__(self, player: int, outcome: Outcome) -> None:
        super().__init__(f"player {player}")
        self.player = player
        self.outcome = outcome


class _Crowded(Exception):
    """The memory of all players together does not fit."""


class _Player:
    """A player: its measurement, and its seat as long as it plays."""

    def __init__(self, number: int, cell: Cell, setup: PlayoffSetup) -> None:
        self.number = number
        self._cell = cell
        self._setup = setup
        self.seat: Seat | None = None
        self.result: Result | None = None
        self._measurement: KernelMeasurement | None = None

    @property
    def plays(self) -> bool:
        return self.seat is not None and self.seat.error is None

    def sit_down(self, gpu: Gpu | None) -> Outcome | None:
        """Prepare it and have a call of it judged. The outcome where it cannot play; None if it can."""
        setup = self._setup
        setup.begin(self.number)
        self.stand_up()
        self._measurement = measurement = KernelMeasurement(
            self._cell,
            setup.measure,
            setup.device,
            setup.masks,
            setup.seed,
            lambda plan: setup.judge(self.number, plan),
        )
        try:
            outcome = measurement.get_ready()
            if outcome is None:
                measurement.release_memory()
                stopwatch = CudaStopwatch(setup.device) if setup.device.type == "cuda" else HostStopwatch()
                self.seat = Seat(self._cell.kernel, measurement.calls, stopwatch, Telemetry(gpu))
        except Exception as error:  # any kernel may raise anything
            outcome = self._failure(error, measurement.stage)
        return outcome

    def _failure(self, error: Exception, where: str) -> Outcome:
        """The outcome of an exception. Raises DeviceLost where it has left the device unusable."""
        outcome = failure(error, where)
        if _is_lost(self._setup.device):
            raise DeviceLost(self.number, outcome) from None
        return outcome

    def stand_up(self) -> None:
        """Forget its measurement and all memory that goes with it."""
        self.seat = self._measurement = None
        gc.collect()
        if self._setup.device.type == "cuda":
            with suppress(RuntimeError):  # a sick device: the runner finds out
                torch.cuda.empty_cache()

    def leave(self, outcome: Outcome) -> None:
        """End with this outcome, without samples."""
        if self._measurement is None:
            self.result = Result(outcome=outcome)
        else:
            self._measurement.samples = None
            self.result = self._measurement.result(outcome)
        self.stand_up()

    def finish(self, ending: Ending, num_players: int, *, has_rival: bool) -> PlayerResult:
        """Its result: of the samples taken, if its timed calls were right, and if another player was timed to
        the end of its rounds."""
        setup = self._setup
        seat = self.seat
        measurement = self._measurement
        if seat is None or measurement is None:
            assert self.result is not None, "a player that does not sit has left with a result"
            return PlayerResult(result=self.result)
        setup.begin(self.number)
        if seat.error is not None:
            self.leave(failure(seat.error, self._cell.direction))
        elif not has_rival:
            self.leave(NO_RIVAL)
        else:
            measurement.samples = _samples(seat, ending, setup.duty)
            try:
                outcome = measurement.finish()
            except Exception as error:
                outcome = self._failure(error, measurement.stage)
            self.result = measurement.result(outcome)
        assert self.result is not None
        is_timed = self.result.samples is not None
        turns = Turns(num_players=num_players, numbers=tuple(seat.turns), ending=ending) if is_timed else None
        self.stand_up()
        return PlayerResult(result=self.result, turns=turns)


class _Playoff:
    def __init__(self, cells: Sequence[Cell], setup: PlayoffSetup, gpu: Gpu | None) -> None:
        self._setup = setup
        self._gpu = gpu
        self._players = [_Player(number, cell, setup) for number, cell in enumerate(cells)]
        self._num_rounds = 0
        self._direction = cells[0].direction

    def run(self) -> list[PlayerResult]:
        try:
            return self._together()
        except _Crowded:
            return self._in_pairs()

    def _together(self) -> list[PlayerResult]:
        """All at one table. Raises _Crowded if there is no room for that."""
        for player in self._players:
            outcome = player.sit_down(self._gpu)
            if isinstance(outcome, OutOfMemory) and sum(other.plays for other in self._players) > 1:
                raise _Crowded
            if outcome is not None:
                player.leave(outcome)
        players = [player for player in self._players if player.plays]
        rounds = self._play(players)
        has_rival = sum(player.plays for player in self._players) > 1
        return [
            player.finish(rounds.ending, len(self._players), has_rival=has_rival) for player in self._players
        ]

    def _in_pairs(self) -> list[PlayerResult]:
        """The first one against each of the others, which come one after the other. The first that can play
        stays to the end."""
        for player in self._players:
            player.stand_up()
        results: dict[int, PlayerResult] = {}
        num_players = len(self._players)
        waiting = list(self._players)
        first: _Player | None = None
        endings: list[Any] = []
        """`Ending` of the rounds of the first with each that has played to the end; to a type checker, a list
        that is multiplied holds any text"""
        while waiting:
            player = waiting.pop(0)
            outcome = player.sit_down(self._gpu)
            if outcome is not None:
                player.leave(outcome)
                results[player.number] = PlayerResult(result=_left(player))
            elif first is None or not first.plays:
                first = player
            else:
                rounds = self._play([first, player])
                if first.plays:
                    endings += [rounds.ending] * player.plays
                    results[player.number] = player.finish(rounds.ending, num_players, has_rival=True)
                    continue
                results[first.number] = first.finish(rounds.ending, num_players, has_rival=True)
                first = None
                endings = []
                if player.plays:
                    waiting.insert(0, player)  # it starts anew, as the one that stays
                else:
                    results[player.number] = player.finish(rounds.ending, num_players, has_rival=True)
        if first is not None:
            worst: Ending = next((ending for ending in endings if ending != "decided"), "decided")
            results[first.number] = first.finish(worst, num_players, has_rival=bool(endings))
        return [results[player.number] for player in self._players]

    def _rest(self, time_ms: float) -> None:
        """Let a GPU rest after a call, as between the calls of a cell."""
        if self._setup.duty is not None:
            time.sleep(rest_seconds(time_ms, self._setup.duty))

    def _play(self, players: Sequence[_Player]) -> Rounds:
        seats = {id(player.seat): player.number for player in players}
        setup = self._setup
        at_work = 0

        def is_crowded(error: Exception) -> bool:
            return len(players) > 2 and isinstance(failure(error, ""), OutOfMemory)

        def begin(seat: Seat) -> None:
            nonlocal at_work
            at_work = seats[id(seat)]
            setup.begin(at_work)

        if len(players) < 2:
            return Rounds(0, "decided")
        try:
            rounds = play_rounds(
                [player.seat for player in players if player.seat is not None],
                setup.rules,
                setup.measure.warmup,
                num_players=len(self._players),
                first_round=self._num_rounds,
                begin=begin,
                rest=self._rest,
                must_end=lambda error: is_crowded(error) or _is_lost(setup.device),
            )
        except Exception as error:
            if is_crowded(error):
                raise _Crowded from None
            raise DeviceLost(at_work, failure(error, self._direction)) from None
        self._num_rounds += rounds.count
        return rounds


def _is_lost(device: torch.device) -> bool:
    """True for a GPU that this process can use no more: all later calls would fail, whoever makes them."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _left(player: _Player) -> Result:
    assert player.result is not None
    return player.result


def _samples(seat: Seat, ending: Ending, duty: float | None) -> Samples:
    return Samples(
        time_ms=(tuple(seat.times_ms),),
        warmup=seat.num_warm,
        timer=seat.stopwatch.name,  # pyright: ignore[reportArgumentType] - one of the two
        stopped="time" if ending == "time" else "repeats",
        enqueue_ms=seat.stopwatch.enqueue_ms,
        duty=duty,
        **seat.telemetry.fields(),
    )
