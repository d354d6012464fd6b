"""The derived table: one row for each record, computed only from records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, FIXED_ORDER, Hardware, UserError, format_length, load_hardware
from longca.lab.store.cells import UnusableFile
from longca.lab.store.columns import COLUMNS
from longca.lab.store.rows.record_table import RecordTable, values_of
from longca.lab.store.text import plural
from longca.lab.studies import Record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NEW_TOKENS = " new tokens"
NO_CONTEXT = "no context"
RANKED_BY = ("study", "kernel", "is_control", "input_values", "sustained", "deterministic")
"""input columns of `is_ranked`"""


def in_order(records: Iterable[Record]) -> list[Record]:
    """The records sorted by their requests, so that equal records give equal files."""
    return sorted(records, key=_order)


def to_report(records: RecordTable | Iterable[Record], problems: Sequence[UnusableFile]) -> RecordTable:
    """The rows of a page, in order.

    Args:
        problems: files and rows that could not be read.

    Raises:
        UserError: there are no records.
    """
    table = RecordTable.of(records)
    own = zip(table.values("playoff"), table.values("repeat"), strict=True)
    if not any(not playoff and not is_repeat for playoff, is_repeat in own):
        raise UserError(
            "There are no records to report on",
            todo="" if problems else "Measure first with `longca run`",
            why=f"{plural(len(problems), 'file')} could not be read, first {problems[0]}" if problems else "",
        )
    return table.in_order()


def columns(
    records: RecordTable | Iterable[Record], hardware: Hardware | None = None
) -> dict[str, list[Any]]:
    """Column name → its values, one for each record in their order, "" or None if not applicable.

    Ceilings and single-GPU baselines are taken from the same records only.

    Args:
        hardware: peaks of GPUs; by default those of `config/hardware.yaml`.
    """
    whole = _whole(records, hardware)
    return {name: values_of(whole.column(name)) for name in whole.column_names}


def derived(records: RecordTable | Iterable[Record], hardware: Hardware | None = None) -> pd.DataFrame:
    """The same as a frame, with "" in text columns and NA in others for missing values."""
    return frame(_whole(records, hardware))


def frame(whole: pa.Table) -> pd.DataFrame:
    """All columns of the derived table (`RecordTable.with_related`) as a frame."""
    import pandas as pd

    return pd.DataFrame({column.name: _series(whole.column(column.name), column.type) for column in COLUMNS})


def _whole(records: RecordTable | Iterable[Record], hardware: Hardware | None) -> pa.Table:
    known = load_hardware() if hardware is None else hardware
    return RecordTable.of(records).with_related(known)


def _series(column: pa.ChunkedArray, kind: str) -> pd.Series:
    import numpy as np
    import pandas as pd
    import pyarrow.compute as pc

    if kind in ("str", "floats"):
        return pd.Series(values_of(column), dtype="object")
    if kind == "float":
        return pd.Series(np.array(column.to_numpy(), dtype="float64"))
    missing = column.is_null().to_numpy()
    if kind == "int":
        numbers = pc.fill_null(column, 0).to_numpy()
        return pd.Series(pd.arrays.IntegerArray(np.array(numbers, dtype="int64"), missing))
    return pd.Series(pd.arrays.BooleanArray(np.array(pc.fill_null(column, False).to_numpy()), missing))


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

    Kernels in a fixed order are ranked beside the same kernels in any order by `is_deterministic` alone.
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
    return usual & ~table.study.isin(aside if len(aside) < len(shares) else ()) & ~_is_of_fixed_order(table)


def is_deterministic(table: pd.DataFrame) -> pd.Series:
    """True for rows that compete where gradients must have the same bits in every run: those whose bits were
    compared and were the same, and those without a number of methods that promise it.

    A number without that proof, as in older records, does not count, and neither does a play-off against a
    method without it.
    """
    proven = table.deterministic.eq(True).fillna(False).astype(bool)
    methods = set(
        table.method[table.deterministic.notna() | table.kernel.astype(str).str.endswith(FIXED_ORDER)]
    )
    has_number = table.status == "ok"
    rows = (table.direction == "bwd") & (proven | (table.method.isin(methods) & ~has_number))
    if "playoff" not in table:
        return rows
    return rows & ~table.playoff.isin(set(table.playoff[has_number & ~proven]) - {""})


def _is_of_fixed_order(table: pd.DataFrame) -> pd.Series:
    """True for rows that compete in `is_deterministic` alone: of kernels in a fixed order where the table has
    the same kernel in any order, and of their play-offs with methods that are deterministic, too."""
    kernel = table.kernel.astype(str)
    ordered = kernel.str.endswith(FIXED_ORDER) & kernel.str.removesuffix(FIXED_ORDER).isin(kernel.unique())
    if not ordered.any() or not {"playoff", "deterministic"}.issubset(table):
        return ordered
    is_open = table.deterministic.isna() & (table.status == "ok")
    closed = set(table.playoff[ordered].unique()) - set(table.playoff[is_open].unique())
    return ordered | table.playoff.isin(closed - {""})


def is_square(table: pd.DataFrame) -> pd.Series:
    """True for rows with as many queries as keys. Others are queries at the end of a longer context, with
    rates of their own, which no sentence about square cells may count."""
    import pandas as pd

    if "new_tokens" not in table:
        return pd.Series(True, index=table.index)
    return (table.new_tokens == table.seqlen).astype(bool)


def new_texts(table: pd.DataFrame) -> list[str]:
    """ "1K new tokens" for rows whose queries are the last tokens of a longer context, and "no context" for
    others; "" for all rows if none has a context."""
    squares = is_square(table).tolist()
    if all(squares):
        return [""] * len(table)
    return [
        NO_CONTEXT if square else f"{format_length(int(count))}{NEW_TOKENS}"
        for square, count in zip(squares, table.new_tokens.tolist(), strict=True)
    ]


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
        cell.num_queries,
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
