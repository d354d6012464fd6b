"""The derived table: one row for each record, computed only from records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, Hardware, UserError, load_hardware
from longca.lab.store.cells import UnusableFile
from longca.lab.store.columns import COLUMNS
from longca.lab.store.text import plural
from longca.lab.store.view import Ceilings, Singles, View
from longca.lab.studies import Record

if TYPE_CHECKING:
    import pandas as pd

RANKED_BY = ("study", "kernel", "is_control", "input_values", "sustained")
"""input columns of `is_ranked`"""
FRAME_TYPES = {"str": "object", "int": "Int64", "float": "float64", "bool": "boolean", "floats": "object"}


def in_order(records: Iterable[Record]) -> list[Record]:
    """The records sorted by their requests, so that equal records give equal files."""
    return sorted(records, key=_order)


def to_report(records: Iterable[Record], problems: Sequence[UnusableFile]) -> list[Record]:
    """The records of a page, in order.

    Args:
        problems: files and rows that could not be read.

    Raises:
        UserError: there are no records.
    """
    ordered = in_order(records)
    if not any(map(is_own, ordered)):
        raise UserError(
            "There are no records to report on",
            todo="" if problems else "Measure first with `longca run`",
            why=f"{plural(len(problems), 'file')} could not be read, first {problems[0]}" if problems else "",
        )
    return ordered


def columns(records: Iterable[Record], hardware: Hardware | None = None) -> dict[str, list[Any]]:
    """Column name → its values, one for each record in their order, "" or None if not applicable.

    Ceilings and single-GPU baselines are taken from the same records only.

    Args:
        hardware: peaks of GPUs; by default those of `config/hardware.yaml`.
    """
    known = load_hardware() if hardware is None else hardware
    content = list(records)
    ceilings = Ceilings(content)
    singles = Singles(content)
    values: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
    parts = [(values[column.name].append, column.value) for column in COLUMNS]
    for record in content:
        view = View(record, known, ceilings, singles)
        for append, value in parts:
            append(value(view))
    return values


def derived(records: Iterable[Record], hardware: Hardware | None = None) -> pd.DataFrame:
    """The same as a frame, with "" in text columns and NA in others for missing values."""
    return frame(columns(records, hardware))


def frame(values: dict[str, list[Any]]) -> pd.DataFrame:
    """Such columns as a frame."""
    import pandas as pd

    return pd.DataFrame(
        {column.name: pd.Series(values[column.name], dtype=FRAME_TYPES[column.type]) for column in COLUMNS}
    )


def is_own(record: Record) -> bool:
    """True for a cell's own record, which is neither of a play-off nor a repeat."""
    return record.playoff is None and not record.repeat


def of_grid(table: pd.DataFrame, *, playoffs: bool = False, repeats: bool = False) -> pd.DataFrame:
    """The cells' own rows, without those of play-offs and repeats.

    Args:
        playoffs: keep the rows of play-offs.
        repeats: keep repeats.
    """
    if not playoffs and "playoff" in table:
        table = table[table.playoff.astype(str) == ""]
    if not repeats and "repeat" in table:
        table = table[~table.repeat.astype(bool)]
    return table.reset_index(drop=True)


def is_ranked(table: pd.DataFrame) -> pd.Series:
    """True for rows that may be ranked: attention on standard normal inputs, with separately timed calls, and
    not "as released".

    Studies in which at most half of the rows qualify are excluded, since these rows exist only for comparison
    and would add points for some kernels only. If there are no other studies, they are ranked.
    """
    attention = ~table.is_control.astype(bool)
    usual = (
        attention
        & ~table.kernel.astype(str).str.startswith(AS_RELEASED)
        & (table.input_values == "normal")
        & ~table.sustained.astype(bool)
    )
    shares = usual[attention].groupby(table.study[attention]).mean()
    aside = set(shares.index[shares <= 0.5])
    return usual & ~table.study.isin(aside if len(aside) < len(shares) else ())


def _order(record: Record) -> tuple[Any, ...]:
    cell = record.cell
    return (
        cell.kind == "cp",
        cell.method,
        cell.world,
        cell.mask,
        json.dumps(cell.mask_params, sort_keys=True),
        cell.direction == "bwd",
        cell.seqlen,
        cell.num_q_heads,
        cell.num_kv_heads,
        cell.head_dim,
        cell.dtype,
        cell.corpus or "",
        cell.seed,
        record.cell_id,
        record.playoff or "",
        record.repeat,
        record.started_at,
        record.run_id,
    )
