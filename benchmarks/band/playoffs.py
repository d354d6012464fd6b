"""Compares the play-offs of a study's records with `benchmarks.band.compare`: have both the same first kernel?

    python -m benchmarks.band.playoffs reports/h200/h200-dense.parquet reports/h200 --csv reports/h200/rested/playoff_compare.csv

The folder holds the `band.csv` of `benchmarks.band.compare`. A case counts where the play-off's first is ahead of
its second by more than --lead. No GPU is needed.
"""  # noqa: E501

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.band.compare import Case
from benchmarks.band.tables import Record, read
from longca.core import Direction, format_length, parse_heads
from longca.lab.store.load import load_columns

CASE = ["mask", "seqlen", "heads", "direction"]
COLUMNS = ("cell_id", "status", "started_at", "playoff", "playoff_rounds", "time_ms_median")
LEAD = 0.01


@dataclass(frozen=True)
class Answer:
    """The first kernel of one case by both programs."""

    title: str
    playoff: str
    other: str
    lead: float
    """of the play-off's first over its second: 0.01 is 1 %"""
    behind: float
    """how much slower the other program finds the play-off's first than its own"""

    @property
    def same(self) -> bool:
        return self.playoff == self.other


def both(records: pd.DataFrame, compared: Sequence[Record]) -> pd.DataFrame:
    """Returns a row for each player of a case's latest play-off that the other program has timed, too. A case
    with less than two such players is left out."""
    played = records[(records.playoff != "") & (records.status == "ok")].sort_values("started_at")
    by_cell = {row.cell_id: row for row in played.itertuples()}
    rows = [
        (
            *(getattr(record, name) for name in CASE),
            record.kernel,
            len(row.playoff_rounds),
            row.time_ms_median,
            record.time_ms,
            row.playoff,
        )
        for record in compared
        if (row := by_cell.get(_cell_id(record)))
    ]
    names = [*CASE, "kernel", "playoff_rounds", "playoff_ms", "compare_ms", "playoff"]
    table = pd.DataFrame(rows, columns=names)
    table = table[table.groupby([*CASE, "playoff"]).kernel.transform("size") > 1].drop(columns="playoff")
    return table.sort_values([*CASE, "kernel"], ignore_index=True)


def _cell_id(record: Record) -> str:
    num_q_heads, num_kv_heads = parse_heads(record.heads)
    direction: Direction = "bwd" if record.direction == "bwd" else "fwd"
    return (
        Case(record.mask, record.seqlen, (num_q_heads, num_kv_heads), direction, ())
        .cell(record.kernel)
        .cell_id
    )


def answers(rows: pd.DataFrame) -> list[Answer]:
    """Returns what both programs say of each case."""
    found = list[Answer]()
    for (mask, seqlen, heads, direction), players in rows.groupby(CASE):
        played = players.set_index("kernel").playoff_ms.sort_values()
        other = players.set_index("kernel").compare_ms.sort_values()
        found.append(
            Answer(
                f"{format_length(seqlen)} {mask} {heads} {direction}",
                str(played.index[0]),
                str(other.index[0]),
                played.iloc[1] / played.iloc[0] - 1,
                other[played.index[0]] / other.iloc[0] - 1,
            )
        )
    return found


def summary(found: Sequence[Answer], lead: float) -> str:
    """Counts the cases of both kinds, and names each clear lead that the other program does not confirm."""
    clear = [answer for answer in found if answer.lead > lead]
    close = [answer for answer in found if answer.lead <= lead]
    lines = [
        f"{sum(answer.same for answer in clear)} of {len(clear)} leads above {100 * lead:g} % have the same "
        f"first kernel in both programs, and {sum(answer.same for answer in close)} of the other "
        f"{len(close)} cases."
    ]
    lines += [
        f"{answer.title}: {answer.playoff} by {100 * answer.lead:.1f} % in the play-off; the other program "
        f"finds {answer.other} first, by {100 * answer.behind:.1f} %"
        for answer in clear
        if not answer.same
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.playoffs", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("records", type=Path, help="records.parquet of a study with play-offs")
    parser.add_argument("folder", type=Path, help="of a band.csv")
    parser.add_argument("--lead", type=float, default=LEAD, help=f"what counts as a clear lead ({LEAD})")
    parser.add_argument("--csv", type=Path, help="write the times of both programs")
    options = parser.parse_args(arguments)
    timed = [record for record in read(options.folder) if record.time_ms and not record.density]
    if not timed:
        parser.error(f"no times in {options.folder}/band.csv: `python -m benchmarks.band.compare` makes it")
    rows = both(load_columns([options.records], COLUMNS)[0], timed)
    if options.csv is not None:
        rows.round({"playoff_ms": 4, "compare_ms": 4}).to_csv(options.csv, index=False)
    print(summary(answers(rows), options.lead))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
