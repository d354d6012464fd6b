"""The support matrix: the outcome of each method under each mask in each direction, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from longca.core import format_length
from longca.lab.report.series import DIRECTIONS, labelled, mask_order
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

WORST_FIRST = ("incorrect", "implausible", "error", "timeout", "oom", "unavailable", "unsupported", "ok")
SHORT = {
    "ok": "ok",
    "unsupported": "no",
    "unavailable": "absent",
    "oom": "memory",
    "incorrect": "wrong",
    "implausible": "too fast",
    "error": "error",
    "timeout": "time",
}
SHOWN = ["mask_label", "method", "direction", "status", "seqlen", "reason"]
"""of a cell that an entry shows"""


@dataclass(frozen=True)
class Entry:
    """The outcome of one method under one mask in one direction."""

    status: str
    """the worst outcome of its cells"""
    text: str
    partly: bool
    """True if only some of its cells are ok"""
    tip: str
    link: str


@dataclass(frozen=True)
class Matrix:
    """A matrix with masks as rows and (method, direction) as columns."""

    title: str
    methods: list[str]
    rows: list[tuple[str, list[Entry | None]]]


@dataclass(frozen=True)
class Reason:
    """Cells with the same outcome for the same reason."""

    status: str
    text: str
    methods: str
    masks: str
    count: int
    cell_ids: list[str]


def matrices(table: pd.DataFrame) -> list[Matrix]:
    """One matrix for kernels, one for context parallelism, without controls."""
    named = labelled(table[~table.is_control.astype(bool)])
    made = []
    for kind, title in (("kernel", "Kernels"), ("cp", "Context parallelism")):
        cells = named[named.kind == kind]
        if len(cells):
            methods = cells.method.unique().tolist()
            few = cells[SHOWN]  # each group is a copy of its columns
            groups = few.groupby(["mask_label", "method", "direction"]).groups
            keys = [(method, direction) for method in methods for direction in DIRECTIONS]
            rows = [
                (label, [_entry(few.loc[groups.get((label, *key), [])]) for key in keys])
                for label in mask_order(cells)
            ]
            made.append(Matrix(title, methods, rows))
    return made


def reasons(table: pd.DataFrame) -> list[Reason]:
    """The reasons of missing numbers, most severe first."""
    bad = table[table.status != "ok"]
    groups = []
    for (status, text), group in bad.groupby(["status", "reason"], sort=False):
        masks = group["mask"].unique().tolist()
        methods = group[["method", "direction"]].drop_duplicates()
        groups.append(
            Reason(
                status,
                text,
                ", ".join(f"{row.method} {row.direction}" for row in methods.itertuples()),
                ", ".join(masks) if len(masks) <= 3 else plural(len(masks), "mask"),
                len(group),
                group.cell_id.tolist(),
            )
        )
    return sorted(groups, key=lambda reason: (WORST_FIRST.index(reason.status), -reason.count, reason.text))


def _entry(cells: pd.DataFrame) -> Entry | None:
    if not len(cells):
        return None
    first = cells.iloc[0]
    present = [status for status in WORST_FIRST if (cells.status == status).any()]
    num_ok = int((cells.status == "ok").sum())
    partly = 0 < num_ok < len(cells)
    text = f"{num_ok}/{len(cells)}" if partly else SHORT[present[0]]
    lines = [f"{first.method}, {DIRECTIONS[first.direction]}, {first.mask_label}"]
    for status in present[::-1]:
        of_status = cells[cells.status == status]
        lengths = ", ".join(format_length(length) for length in sorted(set(of_status.seqlen)))
        lines.append(
            f"{status}: {lengths}"
            + "".join(f" – {reason}" for reason in sorted(set(of_status.reason)) if reason)
        )
    query = {"method": first.method, "mask": first.mask_label, "direction": first.direction}
    return Entry(present[0], text, partly, "\n".join(lines), "#records?" + urlencode(query))
