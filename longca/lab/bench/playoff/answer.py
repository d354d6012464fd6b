"""The answer of a measuring process to a play-off: what came of each player, or which one has taken the
process with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longca.lab.bench.judge.judgement import Judgement, with_judgement
from longca.lab.bench.judge.plausible import plausible
from longca.lab.bench.measure.failure import as_failed
from longca.lab.bench.measure.others import others
from longca.lab.bench.measure.result import PlayerResult, Result
from longca.lab.studies import Cell

NO_RIVAL = as_failed("NoRival", "no other player was left to time it against")


@dataclass(frozen=True)
class Played:
    """The results of players by number. If the process was lost, only the result of the player that caused
    it."""

    results: dict[int, PlayerResult]
    is_lost: bool = False

    @classmethod
    def answered(
        cls,
        cells: Sequence[Cell],
        answer: Mapping[str, Any],
        verdicts: Sequence[Judgement] | None,
        environment: Mapping[str, Any],
    ) -> Played:
        """The results in an answer, as the judge sees them.

        Args:
            verdicts: on each player; None without a judge.
            environment: the fields of all results that say in what environment they were made.
        """
        of_all = {"others": others([answer["uses"]]), **environment}
        results: dict[int, PlayerResult] = {}
        for number, (cell, content) in enumerate(zip(cells, answer["players"], strict=True)):
            player = PlayerResult.received(content)
            result = player.result.model_copy(update=of_all)
            if verdicts is not None:
                result = with_judgement(result, verdicts[number])
            result = plausible(cell, result)
            results[number] = PlayerResult(
                result=result, turns=player.turns if result.samples is not None else None
            )
        return cls(results)

    @classmethod
    def lost(cls, player: int, result: Result) -> Played:
        """The end of a process, by the fault of one player."""
        return cls({player: PlayerResult(result=result)}, is_lost=True)

    @classmethod
    def failed(cls, cells: Sequence[Cell], result: Result) -> Played:
        """The same result of all players: nothing was measured."""
        return cls({number: PlayerResult(result=result) for number in range(len(cells))})


def player_at_work(file: Path) -> int:
    """The player that a measuring process has named in a file before it died; the first where nothing
    tells."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
