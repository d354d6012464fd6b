"""The players of each case, and the cases that are due. It never imports torch.

A case is played off again when one of its players is not in its last play-off, or when anything changed that
defines a player's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from longca.core import Hardware
from longca.core.plugin import is_of_package
from longca.lab.ranking import MeasuredPoint, Measurement, standing
from longca.lab.ranking.facts import facts_of
from longca.lab.store import PlayoffStore, UnusableFile, View
from longca.lab.studies import Cell, Record, Study
from longca.lab.studies.playoff.case import case_id, may_play
from longca.lab.studies.playoff.rules import PlayoffRules

if TYPE_CHECKING:
    from longca.lab.store import Known
    from longca.lab.store.index import CellFacts


@dataclass(frozen=True)
class Playoff:
    """A case and its players, those with the shortest times of their own first."""

    case: str
    players: tuple[Cell, ...]
    has_twin: bool = False
    """the first player plays under a second name as well"""

    @property
    def seats(self) -> tuple[Cell, ...]:
        """The players, and the twin last."""
        return (*self.players, *self.players[: self.has_twin])

    @property
    def title(self) -> str:
        """The case in words."""
        return self.players[0].title.partition(" ")[2]

    def is_among(self, known: Known) -> bool:
        """True if files have it with all of its players."""
        return {player.cell_id for player in self.players} <= known.players.get(self.case, frozenset())


def playoffs_of(
    cells: Iterable[Cell],
    facts: Mapping[str, CellFacts],
    rules: PlayoffRules,
    device: str,
    versions: Mapping[str, str] | None = None,
) -> tuple[list[Playoff], list[Playoff]]:
    """(the play-offs of these cells' cases, those that are left out since a player is in a file outside of
    the package).

    A case of one method that ran, or of none, has no play-off.

    Args:
        cells: all methods of each case.
        device: model of the device: records of others do not count.
        versions: method version of each cell: records of others do not count; any counts of cells without
            one.
    """
    times: dict[str, dict[Cell, Measurement]] = {}
    for cell in cells:
        known = facts.get(cell.cell_id)
        if known is None or known.time_ms is None or known.is_control or known.device != device:
            continue
        if not rules.has_case(cell):
            continue
        if versions is None or known.method_version == versions.get(cell.cell_id, known.method_version):
            times.setdefault(case_id(cell, device), {})[cell] = by_time(cell, known)
    playoffs = [
        Playoff(case, players)
        for case, of_case in times.items()
        if len(players := choose_players(of_case, rules)) > 1
    ]
    kernels = {cell.kernel for playoff in playoffs for cell in playoff.players}
    of_others = set() if rules.own_files else {name for name in kernels if not is_of_package("kernel", name)}
    outside = [
        playoff for playoff in playoffs if not of_others.isdisjoint(cell.kernel for cell in playoff.players)
    ]
    if not outside:
        return playoffs, []
    return [playoff for playoff in playoffs if playoff not in outside], outside


def by_time(cell: Cell, facts: CellFacts) -> Measurement:
    """A cell as players are chosen: in calls a second at its median time. Scattered samples make no player, a
    play-off's own are better; so the interval of the median is left out."""
    assert facts.time_ms is not None
    rate = 1e3 / facts.time_ms
    return Measurement(rate, rate, rate, **facts_of(facts.columns(cell)))


def choose_players(measured: Mapping[Cell, Measurement], rules: PlayoffRules) -> tuple[Cell, ...]:
    """The players of a case: its fastest cell, all cells that are nearly as fast, and all that separate
    measurements cannot distinguish from the first. If some were measured with rests and others without,
    `longca.lab.ranking.protocol` decides which compete.

    Args:
        measured: of one case, on one model of device.
    """
    cells = {cell.kernel: cell for cell in measured}
    case = standing([MeasuredPoint(cell.kernel, (point,)) for cell, point in measured.items()])
    return tuple(
        cells[entry.method]
        for entry in case.entries
        if entry.place <= rules.first or entry.share * (1 + rules.within) >= 1 or entry.is_tied
    )


def due_playoffs(
    playoffs: Iterable[Playoff],
    store: PlayoffStore,
    versions: Mapping[str, str] | None,
    retry: AbstractSet[str] = frozenset(),
    note: Callable[[str], object] = lambda text: None,
) -> list[Playoff]:
    """Those that are not in the store, or not with all players, or by another method.

    Args:
        versions: method version of each player's part in a play-off; any counts if not given.
        retry: statuses of players whose play-offs are due again; also "disturbed" and "noisy".
    """
    due = []
    for playoff in playoffs:
        records = store.read(playoff.case)
        if isinstance(records, UnusableFile):
            note(f"Played off again: {records}")
            records = []
        known = {record.cell_id: record for record in records if not record.repeat}
        players = [known.get(cell.cell_id) for cell in playoff.players]
        if any(
            record is None
            or (versions is not None and record.method_version != versions[record.cell_id])
            or _is_to_retry(record, retry)
            for record in players
        ):
            due.append(playoff)
    return due


def count_playoffs(study: Study, facts: Mapping[str, CellFacts], store: PlayoffStore) -> tuple[int, int]:
    """(cases that are played off, cases that have a play-off) as far as a study is measured, by whatever
    method, on all devices."""
    if study.playoff is None:
        return 0, 0
    measured = [cell for cell in study.all_cells if cell.cell_id in facts]
    playoffs = list(_on_all_devices(measured, facts, study.playoff))
    return len(playoffs) - len(due_playoffs(playoffs, store, None)), len(playoffs)


def unplayed(known: Known, study: Study) -> list[Playoff]:
    """The play-offs of cases that files have cells of, and that they have not with all players."""
    if study.playoff is None:
        return []
    playoffs = _on_all_devices(known.cells, known.facts, study.playoff)
    return [playoff for playoff in playoffs if not playoff.is_among(known)]


def _on_all_devices(
    cells: Sequence[Cell], facts: Mapping[str, CellFacts], rules: PlayoffRules
) -> Iterator[Playoff]:
    """The play-offs of these cells' cases on each device that measured some, by whatever method."""
    for device in sorted({each.device for each in facts.values() if each.device}):
        yield from playoffs_of(cells, facts, rules, device)[0]


def cells_of_cases(study: Study, cells: Iterable[Cell], *, whole: bool) -> list[Cell]:
    """The cells of all cases of these cells.

    Args:
        whole: only of cases of which `cells` has all that the study has.
    """
    asked = {cell.cell_id: cell for cell in cells if may_play(cell)}
    if (
        whole and len({cell.kernel for cell in asked.values()}) < 2
    ):  # as nearly all jobs of a cluster: to compare cells takes long
        return []
    if all(cell.cell_id in asked for cell in study.all_cells if may_play(cell)):
        return list(asked.values())  # no case has more
    key = cache(lambda cell: case_id(cell, ""))
    cases = {key(cell) for cell in asked.values()}
    everything = {
        cell.cell_id: cell for cell in study.all_cells if may_play(cell) and key(cell) in cases
    } | asked
    if whole:
        partly = {key(cell) for cell in everything.values() if cell.cell_id not in asked}
        everything = {cell_id: cell for cell_id, cell in everything.items() if key(cell) not in partly}
    return list(everything.values())


def _is_to_retry(record: Record, retry: AbstractSet[str]) -> bool:
    if not retry:
        return False
    view = View(record, Hardware())
    return (
        record.outcome.status in retry
        or ("disturbed" in retry and view.num_disturbed > 0)
        or ("noisy" in retry and view.is_noisy)
    )
