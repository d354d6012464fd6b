"""The consistency of a table's columns with its records: a number counts only if it follows from samples.

`longca.lab.store.load` checks every Parquet file that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longca.core import PACKAGE_ROOT, Hardware
from longca.lab.store.columns import COLUMNS, Column
from longca.lab.store.files import file_sha256
from longca.lab.store.view import View
from longca.lab.studies import Record

VERIFIED = PACKAGE_ROOT / "lab/store/checks/verified.sha256"
SAME = 1e-9  # relative difference: versions of Python sum floats differently

# columns that depend on other records, on config/hardware.yaml or on limits that may change: always
# recomputed
_BESIDE = ("config/hardware.yaml", "the records of")
_BY_LIMITS = ("peak_percent", "disturbed")


def checked_columns() -> tuple[Column, ...]:
    """The numbers of the derived table that depend on a single record.

    Texts are excluded: their wording may change between versions, and no command reads them from a file.
    """
    return tuple(
        column
        for column in COLUMNS
        if (column.type != "str" or column.name in ("cell_id", "status"))
        and not any(words in column.source for words in _BESIDE)
        and column.name not in _BY_LIMITS
    )


def differing_rows(records: Mapping[int, Record], stored: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """Rows whose stored columns disagree with their records: row → the first difference, as a continuation of
    "row 7".

    Args:
        records: by row, from 0.
        stored: columns of a file, each with a value for every row.
    """
    parts = [(column, stored[column.name]) for column in checked_columns() if column.name in stored]
    differences: dict[int, str] = {}
    for row, record in records.items():
        view = View(record, Hardware())
        values = {column.name: column.value(view) for column, _ in parts}
        if reason := difference(values, {column.name: written[row] for column, written in parts}):
            differences[row] = reason
    return differences


def difference(values: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """The first difference of a stored row from the values that its record gives, as a continuation of "row
    7"; "" if there is none."""
    for name, written in stored.items():
        value = values[name]
        if written != value and not _is_same(written, value):
            return f"is damaged (its {name} is {_short(written)}, its record gives {_short(value)})"
    return ""


def is_verified(path: Path) -> bool:
    """True for a committed table whose columns are known, by its SHA-256, to agree with its records.

    A test compares each of them; reading only their columns saves seconds.
    """
    if not path.is_file():  # a pipe would wait for a writer
        return False
    try:
        return file_sha256(path) in _verified()
    except OSError:
        return False


def _verified() -> frozenset[str]:
    lines: Iterable[str] = VERIFIED.read_text(encoding="utf-8").splitlines() if VERIFIED.is_file() else ()
    return frozenset(line.split()[0] for line in lines if line.strip())


def _is_same(written: Any, value: Any) -> bool:
    if written is None or value is None:
        return written is value
    if isinstance(value, tuple):
        return len(written) == len(value) and all(map(_is_same, written, value))
    if isinstance(value, bool | str) or isinstance(written, bool | str):
        return bool(written == value)
    return math.isclose(written, value, rel_tol=SAME) or (math.isnan(written) and math.isnan(value))


def _short(value: Any) -> str:
    text = "empty" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
