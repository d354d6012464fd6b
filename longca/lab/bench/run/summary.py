"""The summary of a run: what came of the requested cells, of repeats and of play-offs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longca.lab.bench.run.playoffs import PlayoffCounts
from longca.lab.bench.run.progress import duration
from longca.lab.bench.run.repeats import RepeatCounts
from longca.lab.bench.run.scores import FAILED, Scoreboard, ShortNames
from longca.lab.store.text import plural


@dataclass(frozen=True)
class Summary:
    """The summary of a run."""

    run_id: str
    counts: dict[str, int]
    """status → number of requested cells, measured now or before"""
    num_measured: int
    num_kept: int
    seconds: float
    board: Scoreboard
    """the scores of all requested cells"""
    logs: Path
    """folder of what the measuring processes printed"""
    names: ShortNames
    """of the requested cells"""
    headline: str = ""
    """what was requested, measured before and to do"""
    num_controls: int = 0
    """of the study, measured beside the cells"""
    playoffs: PlayoffCounts | None = None
    """None where none were asked for"""
    repeats: RepeatCounts | None = None
    """None where none were asked for"""

    @property
    def num_failed(self) -> int:
        """Cells that ended as `incorrect`, `implausible`, `error` or `timeout`."""
        return sum(self.counts[status] for status in FAILED)

    @property
    def had_nothing_to_do(self) -> bool:
        """True if all was measured before."""
        num_repeats = self.repeats.num_measured if self.repeats else 0
        num_playoffs = self.playoffs.num_played if self.playoffs else 0
        return not (self.num_measured or self.num_controls or num_repeats or num_playoffs)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        time_taken = f" in {duration(self.seconds)}" if self.num_measured else ""
        return (
            f"{plural(self.num_measured + self.num_kept, 'cell')}: {counts} "
            f"({self.num_measured} measured{time_taken}, {self.num_kept} before)"
        )
