"""The records as data of the page: columns of short texts, which the script only lays out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longca.lab.ranking.table import is_beside
from longca.lab.report.content.packing import packed, script_json
from longca.lab.report.content.record_texts import detail_texts, merged_texts, table_texts, tip_texts
from longca.lab.report.series import Unit
from longca.lab.store import RecordTable
from longca.lab.store.text import is_missing, number
from longca.lab.studies import Failed, Record

if TYPE_CHECKING:
    import pandas as pd

LOG_END = 1500  # characters
FAILED = Failed.model_fields["status"].default
TFLOPS = Unit(1.0, "TFLOP/s")

MOST_ROWS = 8_000  # records of a page, which then stays small enough for e-mail, and fast
# fields that are equal for all draws of a cell
CASE = ["kind", "method", "mask_label", "setting", "direction", "seqlen", "world", "status"]


def on_page(table: pd.DataFrame, first: Collection[str]) -> list[int]:
    """The positions of a page's records, in order: all, or at most `MOST_ROWS`.

    Named cells have priority, then one draw of each case and status, then the second draw of each, and so on.

    Args:
        table: `longca.lab.report.series.labelled` of the records.
        first: named cells.
    """
    if len(table) <= MOST_ROWS:
        return list(range(len(table)))
    draw = (
        table.groupby(CASE, sort=False, dropna=False).cumcount().where(~table.cell_id.isin(list(first)), -1)
    )
    return sorted(draw.to_numpy().argsort(kind="stable")[:MOST_ROWS].tolist())


def anchors(cell_ids: Iterable[str]) -> list[str]:
    """One name for each record: its cell id, numbered if a cell has several records."""
    seen: Counter[str] = Counter()
    names = []
    for cell_id in cell_ids:
        seen[cell_id] += 1
        names.append(cell_id if seen[cell_id] == 1 else f"{cell_id}-{seen[cell_id]}")
    return names


def with_anchors(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `anchor`, which names each record, and with cell ids that name one device each.

    A cell is a request, which several devices may have run. Its id becomes the anchor of its first record on
    the device, so that whatever is made of these rows leads to a record of its own device.
    `longca.lab.report.series.plain_ids` gives the cell ids back.
    """
    beside = is_beside(table).to_numpy()
    order = beside.argsort(kind="stable")  # rows of play-offs and repeats are on no page
    names = [""] * len(table)
    for row, name in zip(order, anchors(table.cell_id.iloc[order]), strict=True):
        names[row] = name
    first: dict[tuple[str, str], str] = {}
    keys = list(zip(table.cell_id, table.device, strict=True))
    for row in order:
        first.setdefault(keys[row], names[row])
    return table.assign(anchor=names, cell_id=[first[key] for key in keys])


def rows_json(
    records: RecordTable | Sequence[Record],
    table: pd.DataFrame,
    unit: Unit = TFLOPS,
    *,
    samples: bool = True,
    details: bool = True,
) -> str:
    """JSON for a script element: the columns (`longca.lab.report.content.packing.packed`) of the records' texts.

    Args:
        table: `longca.lab.report.series.labelled` of the records, in their order.
        unit: the unit of the page's rates.
        samples: include the ordered samples, for small charts.
        details: include the details of records.
    """  # noqa: E501
    table = table if "anchor" in table else with_anchors(table)
    columns: dict[str, Sequence[Any]] = {"anchor": table.anchor.tolist(), **table_texts(table, unit)}
    columns["log"] = _logs(RecordTable.of(records))
    if details:
        columns |= detail_texts(table, unit)
    if details and samples:
        columns |= _samples(table)
    return script_json(packed(columns))


def _logs(records: RecordTable) -> list[str]:
    """The end of each error's log."""
    logs = [""] * len(records)
    failed = [row for row, status in enumerate(records.values("status")) if status == FAILED]
    for row, record in zip(failed, records.records(failed), strict=True):
        logs[row] = record.outcome.log[-LOG_END:] if isinstance(record.outcome, Failed) else ""
    return logs


def points_json(table: pd.DataFrame, more: Mapping[str, list[Any]], unit: Unit) -> str:
    """The same for tooltips of a figure's points, for a page without a table of records.

    Args:
        table: `longca.lab.report.series.labelled` of the records.
        more: further columns.
    """
    return script_json(packed({"anchor": table.cell_id.tolist(), **tip_texts(table, unit), **more}))


def merged_json(table: pd.DataFrame, marks: Iterable[str], unit: Unit) -> str:
    """The texts of points that are not one whole cell, by their rows, for a script element.

    Args:
        table: `longca.lab.report.series.labelled` of the page's records, in their order.
        marks: the rows of all points of the page's figures (`data-rows`).
    """
    several = sorted({mark for mark in marks if "+" in mark or "/" in mark})
    return script_json({"marks": several, "columns": packed(merged_texts(table, several, unit))})


def _samples(table: pd.DataFrame) -> dict[str, list[Any]]:
    """The samples of each record with at least two, with five significant digits, and the extreme ones in
    words."""
    lists = [[] if is_missing(samples) else list(samples) for samples in table.samples_ms]
    shown = [[float(f"{value:.5g}") for value in samples] if len(samples) > 1 else [] for samples in lists]
    ends = (min, max)
    low, high = ([number(end(samples), 4) if samples else "" for samples in shown] for end in ends)
    return {"samples": shown, "sample_low": low, "sample_high": high}
