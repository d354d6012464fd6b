"""Writes longca/lab/store/checks/verified.sha256: the committed tables of records, whose columns agree with
their records.

    python -m tools.verified_tables

Commands read the columns of these tables alone; of any other table they make the columns from its records.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from longca.lab.store.checks.columns import VERIFIED
from longca.lab.store.load import compared
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
        if problems := compared(path).problems:
            raise ValueError(str(problems[0]))
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}\n")
    return "".join(lines)


if __name__ == "__main__":
    VERIFIED.write_text(text(), encoding="utf-8")
