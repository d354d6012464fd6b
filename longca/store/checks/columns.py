"""The agreement of a table's columns with the records beside them: a number counts only where it follows from samples.

`longca.store.load` asks here of every Parquet file that it reads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longca.core.plugin import PACKAGE_ROOT
from longca.core.record import Record
from longca.store.columns import COLUMNS, Column
from longca.store.hardware import Hardware
from longca.store.view import View

VERIFIED = PACKAGE_ROOT / "store/checks/verified.sha256"
SAME = 1e-9  # of two numbers: versions of Python add floats in other ways

# columns that follow from other records, from config/hardware.yaml or from limits that may have changed since: always made anew
_BESIDE = ("config/hardware.yaml", "the records of")
_BY_LIMITS = ("peak_percent", "disturbed")


def checked_columns() -> tuple[Column, ...]:
    """The numbers of the derived table that follow from each record alone.

    Texts are left out: their words may change between versions, and no command reads them from a file.
    """
    return tuple(column for column in COLUMNS if (column.type != "str" or column.name in ("cell_id", "status"))
                 and not any(words in column.source for words in _BESIDE) and column.name not in _BY_LIMITS)


def differing_rows(records: Mapping[int, Record], stored: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """Rows whose stored columns differ from what follows from their records: row → the first difference, to follow upon "row 7".

    Args:
        records: by row, from 0.
        stored: columns of a file, each with a value for every row.
    """
    parts = [(column, stored[column.name]) for column in checked_columns() if column.name in stored]
    differences: dict[int, str] = {}
    for row, record in records.items():
        view = View(record, Hardware())
        for column, values in parts:
            value, written = column.value(view), values[row]
            if written != value and not _is_same(written, value):
                differences[row] = f"is damaged (its {column.name} is {_short(written)}, its record gives {_short(value)})"
                break
    return differences


def is_verified(path: Path) -> bool:
    """True for a table of this project whose columns are known to agree with its records, by its SHA-256.

    A test compares each of them; reading their columns alone saves seconds.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() in _verified()
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
