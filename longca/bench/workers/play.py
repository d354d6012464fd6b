"""A play-off as the runner asks a group of one rank for it: one request for all players, and what came of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longca.bench.judge.judgement import with_judgement
from longca.bench.judge.plausible import plausible
from longca.bench.measure.failure import as_failed
from longca.bench.measure.others import others
from longca.bench.measure.result import PlayerResult, Result
from longca.bench.workers.judge import JudgeDied
from longca.core.cell import Cell
from longca.core.playoff import PlayoffRules
from longca.core.record import TimedOut
from longca.core.study import Measure

if TYPE_CHECKING:
    from longca.bench.workers.channel import Message
    from longca.bench.workers.group import Group

NO_RIVAL = as_failed("NoRival", "no other player was left to time it against")


@dataclass(frozen=True)
class Played:
    """The results of players by number. Where the process was lost, these are of the player that is to blame alone."""

    results: dict[int, PlayerResult]
    is_lost: bool = False


def play(group: Group, cells: Sequence[Cell], measure: Measure, rules: PlayoffRules, seed: int) -> Played:
    """Play off these cells in the process of a group, with the verdicts of its judge.

    Args:
        cells: of one case, those that are thought to be the fastest first.
        seed: of the run, for all that is drawn for checks.
    """
    at_work = group.ranks[0].log.with_suffix(".player")
    timeout_s = measure.timeout_s * len(cells) + rules.max_seconds * (len(cells) - 1)
    request: Message = {"do": "play", "cells": [cell.model_dump(mode="json") for cell in cells], "seed": seed,
                        "measure": measure.model_dump(mode="json"), "rules": rules.model_dump(mode="json"), "at_work": str(at_work),
                        "listed": group.listed,
                        "judge": None if group.judge is None else group.judge.process.pid}
    title = f"play-off of {', '.join(cell.kernel for cell in cells)}: {cells[0].title}"
    try:
        group.begin_judging(cells, measure, seed)
        answer = group.ask_alone(request, title, timeout_s)
        if isinstance(answer, Result):
            if isinstance(answer.outcome, TimedOut) and group.judge is not None:
                with suppress(JudgeDied):
                    group.verdicts()
            return _lost(_read(at_work), answer)
        if "lost" in answer:
            group.close(gently=False)
            return _lost(int(answer["lost"]), Result.received(answer["result"]))
        verdicts = group.verdicts()
    except JudgeDied as lost:
        assert group.judge is not None
        group.judge.close()
        failed = as_failed("JudgeDied", f"the process that judges results died: {lost}", group.judge.tail())
        return Played({number: PlayerResult(result=Result(outcome=failed)) for number in range(len(cells))})
    of_all = {"others": others([answer["uses"]]), **group.environments([answer])}
    results: dict[int, PlayerResult] = {}
    for number, (cell, content) in enumerate(zip(cells, answer["players"], strict=True)):
        player = PlayerResult.received(content)
        result = player.result.model_copy(update=of_all)
        if verdicts is not None:
            result = with_judgement(result, verdicts[number])
        result = plausible(cell, result)
        results[number] = PlayerResult(result=result, turns=player.turns if result.samples is not None else None)
    return Played(results)


def _lost(player: int, result: Result) -> Played:
    return Played({player: PlayerResult(result=result)}, is_lost=True)


def _read(at_work: Path) -> int:
    """The player that was at work; the first where nothing tells."""
    try:
        return int(at_work.read_text())
    except (OSError, ValueError):
        return 0
