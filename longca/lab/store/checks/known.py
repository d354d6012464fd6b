"""Cells that committed records have already, so that a run need not measure them, and their play-offs.

A record counts if it was made by the present protocol, whatever its method version: a campaign takes many
sessions, and the code may change between two of them. Who wants numbers of today's code alone leaves the file
away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from longca.core import UserError
from longca.lab.store.decode import (  # not `load`: a new column must not make measurements stale
    Decoder,
    Unusable,
)
from longca.lab.store.index import CellFacts
from longca.lab.store.parquet import RECORD_COLUMN, BadTable, read_texts
from longca.lab.store.text import plural
from longca.lab.studies import Cell, Measure, Record, case_id

PROTOCOL_SINCE = 3  # schema of records


class Known(NamedTuple):
    """The cells of a selection that files have records of, and the play-offs of their cases."""

    cells: tuple[Cell, ...]
    facts: dict[str, CellFacts]
    """by cell id"""
    players: dict[str, frozenset[str]]
    """id of a case → ids of the cells of its last play-off"""
    not_taken: dict[str, int]
    """reason → number of cells whose records alone do not count"""
    num_damaged: int
    """records that cannot be used"""

    def sentence(self, num_cells: int, files: Sequence[Path]) -> str:
        """The outcome, in one line.

        Args:
            num_cells: of the selection.
        """
        refused = (
            f"; records of {plural(sum(self.not_taken.values()), 'cell')} were not taken: "
            + ", ".join(f"{number:,} {reason}" for reason, number in self.not_taken.items())
            if self.not_taken
            else ""
        )
        damaged = f"; {plural(self.num_damaged, 'record')} there cannot be used" if self.num_damaged else ""
        names = ", ".join(map(str, files))
        return f"{len(self.cells)} of {plural(num_cells, 'cell')} are known from {names}{refused}{damaged}"


def known_cells(
    cells: Sequence[Cell],
    files: Sequence[Path],
    measure_of: Callable[[Cell], Measure],
    retried: Collection[str] = (),
) -> Known:
    """The cells that have a record of the present protocol in the files.

    Args:
        measure_of: settings of the study for a cell.
        retried: statuses that do not count; nor does that of a kernel or of GPUs that were not there.

    Raises:
        UserError: a file is not there, or is no table of records.
    """
    wanted = {cell.cell_id: cell for cell in cells}
    known = dict[str, CellFacts]()
    players = defaultdict[str, list[Record]](list)  # by play-off
    refused = dict[str, str]()
    num_damaged = 0
    decoder = Decoder()
    for path in files:
        if not path.is_file():
            raise UserError(f"There is no file '{path}'", todo="`longca export` writes records.parquet")
        try:
            for text in read_texts(path, RECORD_COLUMN):
                try:
                    record = decoder.decode((text or "").encode())
                except Unusable:
                    num_damaged += 1
                    continue
                if record.cell_id not in wanted or record.outcome.status in {"unavailable", *retried}:
                    continue
                if record.repeat:  # neither a player nor the cell's own record
                    continue
                if record.playoff is not None:
                    players[record.playoff].append(record)
                    continue
                if reason := other_protocol(record, measure_of(wanted[record.cell_id])):
                    refused[record.cell_id] = reason
                else:
                    known[record.cell_id] = CellFacts.of(record)
        except BadTable as error:
            raise UserError(f"'{path}' {error}", todo="Give a records.parquet of `longca export`") from None
    reasons = Counter(reason for cell_id, reason in refused.items() if cell_id not in known)
    return Known(
        tuple(cell for cell in cells if cell.cell_id in known),
        known,
        _last_players(players.values()),
        dict(reasons.most_common()),
        num_damaged,
    )


def _last_players(playoffs: Iterable[Sequence[Record]]) -> dict[str, frozenset[str]]:
    """Id of a case → ids of the cells of its last play-off.

    Args:
        playoffs: the players of each.
    """
    players = {}
    for playoff in sorted(playoffs, key=lambda playoff: playoff[0].started_at):
        device = max(CellFacts.of(player).device for player in playoff)  # one that failed may not know it
        players[case_id(playoff[0].cell, device)] = frozenset(player.cell_id for player in playoff)
    return players


def other_protocol(record: Record, measure: Measure) -> str:
    """The reason for which a record is not of the protocol that is asked for; "" if it is.

    A record without samples depends on no protocol. One from before the present protocol is of a code from
    then, which may have refused more than today's, and costs little to make again.
    """
    samples = record.samples
    if samples is None:
        return "" if record.schema_version >= PROTOCOL_SINCE else "of an earlier longca"
    if samples.timer == "cuda_event" and not record.cell.sustained and measure.duty < 1:
        if samples.duty is None:
            return "of a GPU that did not rest"
        if samples.duty > measure.duty:
            return "of a GPU that rested less"
    if _asked(record, "repeats", len(samples.time_ms[0])) < measure.repeats:
        return "with fewer samples asked for"
    precision = _asked(record, "precision", measure.precision)
    if measure.precision and not record.cell.sustained and not 0 < precision <= measure.precision:
        return "with a coarser median asked for"
    return ""


def _asked(record: Record, name: str, otherwise: float) -> float:
    value = record.measure.get(name, otherwise)
    return float(value) if isinstance(value, int | float) else otherwise
