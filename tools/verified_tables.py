"""Writes longca/lab/store/checks/verified.sha256: the committed tables of records, whose columns agree with
their records.

    python -m tools.verified_tables

Commands read the columns of these tables alone; of any other table they make the columns from its records.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from longca.core import load_hardware
from longca.lab.store.checks.columns import VERIFIED, checked_columns, difference
from longca.lab.store.load import decoded_rows
from longca.lab.store.parquet import read_columns
from longca.lab.store.rows.record_table import TYPES, TableBuilder, values_of
from longca.lab.store.rows.relations import RELATED
from tools.pages import ROOT


def tables() -> list[Path]:
    """The committed tables of records; `longca paper` leaves another one beside its page, which is not
    committed."""
    reports = ROOT / "reports"
    return sorted(path for path in reports.rglob("*.parquet") if reports / "paper" not in path.parents)


def text() -> str:
    """A line for each table, as `sha256sum` writes them.

    Raises:
        ValueError: a table has rows that cannot be used, or columns that differ from what follows from its
            records.
    """
    lines = []
    for path in tables():
        if problem := first_problem(path):
            raise ValueError(f"{path}: {problem}. Export its records again")
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}\n")
    return "".join(lines)


def first_problem(path: Path) -> str:
    """The first row that cannot be used, or whose columns differ from those that the records of the table
    give, as a continuation of the path; "" if there is none.

    Rates of other rows and peaks of GPUs are compared as well, since commands read these columns, too.
    """
    builder = TableBuilder()
    for row, record in decoded_rows(path):
        if isinstance(record, str):
            return f"row {row + 1} {record}"
        builder.add(record)
    whole = builder.table().with_related(load_hardware())
    checked = {column.name: column.type for column in checked_columns()} | {"disturbed": "bool"}
    stored = read_columns(path, checked | {name: TYPES[name] for name in RELATED}, optional=checked)
    names = stored.column_names
    columns = (
        zip(*(values_of(table.column(name)) for name in names), strict=True) for table in (whole, stored)
    )
    for row, (values, written) in enumerate(zip(*columns, strict=True), 1):
        pair = (dict(zip(names, each, strict=True)) for each in (values, written))
        if values != written and (reason := difference(*pair)):
            return f"row {row} {reason}"
    return ""


if __name__ == "__main__":
    VERIFIED.write_text(text(), encoding="utf-8")
