"""The play-offs of a run and their records. It never imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

from longca.lab.bench.measure.result import Result
from longca.lab.bench.run.method_version import MethodVersions
from longca.lab.bench.run.players import Playoff, cells_of_cases, due_playoffs, playoffs_of
from longca.lab.bench.workers.job import JobError
from longca.lab.bench.workers.pool import Pool, TooFewLeft
from longca.lab.store import PlayoffStore
from longca.lab.store.index import CellFacts
from longca.lab.store.text import percent, plural
from longca.lab.studies import Cell, Record, Study
from longca.lab.studies.playoff.case import playoff_id
from longca.lab.studies.playoff.repeats import RepeatRules, cases_with_twins
from longca.lab.studies.playoff.rules import PlayoffRules

if TYPE_CHECKING:
    from longca.lab.bench.run.ending import Stop
    from longca.lab.bench.run.progress import Progress
    from longca.lab.store import Known

MakeRecord = Callable[..., Record]


@dataclass
class PlayoffCounts:
    """Numbers of play-offs of a run."""

    num_played: int = 0
    num_kept: int = 0
    """played off before"""
    num_with_failures: int = 0
    """of those played now: a player failed that ran alone"""
    left_out: list[str] = field(default_factory=list)
    """cases that are not played off: a player is in a file outside of the package"""
    differences: list[float] = field(default_factory=list)
    """of the two medians of players with a twin, as shares of the shorter one"""

    def __str__(self) -> str:
        failed = f", in {self.num_with_failures} of them a player failed" if self.num_with_failures else ""
        outside = (
            (
                f"; {plural(len(self.left_out), 'case')} not played off: a kernel is in a file of yours, see "
                "`own_files` in docs/design/playoff.md"
            )
            if self.left_out
            else ""
        )
        total = plural(self.num_played + self.num_kept, "play-off")
        twins = (
            f"; {plural(len(self.differences), 'kernel')} played twice: medians differ by "
            f"{percent(max(self.differences))} at most"
            if self.differences
            else ""
        )
        return f"{total}: {self.num_played} now{failed}, {self.num_kept} before{twins}{outside}"


class PlayoffRun:
    """The play-offs that a run has to do after its cells.

    Args:
        cells: that were asked for. The other methods of their cases play as well, as far as they were
            measured.
        whole: only cases of which all methods of the study were asked for: a job of the workflow has a part
            of them.
        make_record: makes a record of a cell, its result and how it was played.
        repeats: rules of the twins; without them there are none.
        known: records of elsewhere, of whatever method. They say who plays, and what was played already.
    """

    def __init__(
        self,
        study: Study,
        rules: PlayoffRules,
        cells: Sequence[Cell],
        store: PlayoffStore,
        pool: Pool,
        run_id: str,
        make_record: MakeRecord,
        versions: MethodVersions,
        *,
        whole: bool = False,
        repeats: RepeatRules | None = None,
        known: Known | None = None,
    ) -> None:
        self._study = study
        self._rules = rules
        self._store = store
        self._pool = pool
        self._run_id = run_id
        self._make_record = make_record
        self._versions = versions
        self._repeats = repeats
        self.counts = PlayoffCounts()
        self._known = known
        self._cells = cells_of_cases(study, [*cells, *(known.cells if known else ())], whole=whole)

    def play(
        self,
        facts: Mapping[str, CellFacts],
        show: Progress,
        stop: Stop,
        *,
        retry: AbstractSet[str] = frozenset(),
        force: bool = False,
    ) -> None:
        """Play off what is due. Each play-off is stored at once.

        Raises:
            KeyboardInterrupt: the run is to end.
            JobError: machines were lost, this one among them.
        """
        self._store.remove_leftovers()
        device = self._pool.device.name
        here = [cell for cell in self._cells if cell.cell_id in facts]
        facts = {**(self._known.facts if self._known else {}), **facts}
        measured = [cell for cell in self._cells if cell.cell_id in facts]
        if not measured:
            return
        playoffs, outside = playoffs_of(
            measured, facts, self._rules, device, self._versions.of(here)(device) if here else {}
        )
        self.counts.left_out = [playoff.title for playoff in outside]
        players = {cell for playoff in playoffs for cell in playoff.players}
        versions = self._versions.of(players, self._rules)(device) if players else {}
        due = playoffs if force else due_playoffs(playoffs, self._store, versions, retry, show.note)
        if not force:
            due = [each for each in due if not self._is_played_elsewhere(each, retry)]
        self.counts.num_kept = len(playoffs) - len(due)
        due = self._with_twins(due, playoffs)
        show.start_playoffs(len(due), self.counts.num_kept)
        for number, playoff in enumerate(due):
            if stop.soon():
                show.note(f"Stopped with {plural(len(due) - number, 'play-off')} to do: run again to go on")
                raise KeyboardInterrupt
            show.begin(playoff.players[0])
            try:
                records = self._played(playoff, versions)
            except TooFewLeft as lost:
                left = plural(len(due) - number, "play-off")
                raise JobError(
                    f"{left} not played", why=str(lost), todo="All else is stored: run again to go on"
                ) from None
            self._store.write(playoff.case, records)
            self.counts.num_played += 1
            of_players = [record for record in records if not record.repeat]
            self.counts.num_with_failures += any(record.samples is None for record in of_players)
            difference = difference_of_twins(records)
            self.counts.differences += [] if difference is None else [difference]
            show.end_playoff(playoff.title, of_players)

    def _is_played_elsewhere(self, playoff: Playoff, retry: AbstractSet[str]) -> bool:
        """True if a file has it, and it is not one of this folder to be retried."""
        return (
            self._known is not None
            and playoff.is_among(self._known)
            and not (retry and self._store.read(playoff.case))
        )

    def _with_twins(self, due: Sequence[Playoff], playoffs: Sequence[Playoff]) -> list[Playoff]:
        """The play-offs that are due, some of them with a twin."""
        if self._repeats is None:
            return list(due)
        again = {playoff.case for playoff in due}
        kept = [
            records
            for playoff in playoffs
            if playoff.case not in again and (records := self._store.read(playoff.case))
        ]
        chosen = cases_with_twins(
            [playoff.case for playoff in due],
            len(kept),
            sum(any(record.repeat for record in records) for records in kept if isinstance(records, list)),
            self._study.seed,
            self._repeats,
            on_gpu=self._pool.device.type == "cuda",
        )
        return [replace(playoff, has_twin=playoff.case in chosen) for playoff in due]

    def _played(self, playoff: Playoff, versions: Mapping[str, str]) -> list[Record]:
        begun = time.monotonic()
        started = datetime.now(UTC)
        players = self._pool.play(playoff.seats, self._study.measure_of(playoff.players[0]), self._rules)
        seconds = (time.monotonic() - begun) / len(players)
        identity = playoff_id(playoff.case, self._run_id)
        return [
            self._make_record(
                cell,
                player.result,
                started,
                seconds,
                method_version=versions[cell.cell_id],
                playoff=identity,
                turns=player.turns if _is_timed(player.result) else None,
                repeat=number >= len(playoff.players),
            )
            for number, (cell, player) in enumerate(zip(playoff.seats, players, strict=True))
        ]


def difference_of_twins(records: Sequence[Record]) -> float | None:
    """The difference of the two medians, as a share of the shorter one; None without two numbers."""
    twin = next((record for record in records if record.repeat), None)
    if twin is None:
        return None
    both = [
        record.samples for record in records if record.cell_id == twin.cell_id and record.samples is not None
    ]
    if len(both) < 2:
        return None
    first_ms, second_ms = (median(samples.time_ms[0]) for samples in both)
    return max(first_ms, second_ms) / min(first_ms, second_ms) - 1


def _is_timed(result: Result) -> bool:
    return result.samples is not None
