"""`longca.load`: records as a DataFrame for notebooks and scripts.

frame = longca.load("quick")                      # a study, by its name or its YAML file
frame = longca.load("results/quick", "a.parquet") # folders of results and exported files
frame = longca.load()                             # this project's own records of H200s
frame.attrs["units"]["time_ms_median"]            # "ms"
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import UserError, check_installed
from longca.lab.store.columns import COLUMNS
from longca.lab.store.load import FILES, committed, holds_records, refuse_without_records, tables_in
from longca.lab.store.load import load as load_records
from longca.lab.store.table import derived, in_order
from longca.lab.store.text import plural
from longca.lab.studies import load_config, load_study

if TYPE_CHECKING:
    import pandas as pd


def load(*sources: str | Path, playoffs: bool = False, repeats: bool = False) -> pd.DataFrame:
    """The records of all sources as a frame, one row for each distinct record.

    Its columns are those of docs/reference/columns.md. `frame.attrs` has `units` and `meanings` by column.
    Missing values are "" in text columns and NA in others. Unreadable files and rows give a warning.

    Args:
        sources: studies by name or YAML file, results folders, records.parquet or records.json files. A study
            without own results means its committed records. Without sources, all committed records are
            loaded.
        playoffs: include rows of play-offs, whose column `playoff` is not empty, in addition to the cells'
            own rows.
        repeats: include rows of repeats, whose column `repeat` is true.

    Raises:
        UserError: there is no such study or file, or no record in it; or the extra `lab` is not installed.
    """
    check_installed("longca.load", "pandas", "pyarrow")
    places = places_of(*sources)
    loaded = load_records(*places)
    if loaded.problems:
        warnings.warn(
            f"{plural(len(loaded.problems), 'source of records')} could not be read, first "
            f"{loaded.problems[0]}",
            stacklevel=2,
        )
    if not loaded.records:
        raise UserError(
            f"There are no records in '{', '.join(map(str, places))}'",
            why=str(loaded.problems[0]) if loaded.problems else "",
            todo="" if loaded.problems else "Measure first with `longca run`",
        )
    frame = derived(
        in_order(
            [*loaded.records, *(loaded.playoffs if playoffs else []), *(loaded.repeats if repeats else [])]
        )
    )
    frame.attrs = {
        "units": {column.name: column.unit for column in COLUMNS},
        "meanings": {column.name: column.meaning for column in COLUMNS},
    }
    return frame


def places_of(*sources: str | Path) -> list[Path]:
    """The files and folders of these sources, as of `load`; those of the committed records without any.

    Raises:
        UserError: there is no such study, or there are no committed records.
    """
    places = [path for source in sources for path in _tables(source) or [_place(source)]] or committed()
    if not places:
        raise UserError(
            "This longca has no records of its own",
            todo="Give a study, a folder of results, or files of records",
        )
    return places


def _tables(source: str | Path) -> list[Path]:
    return tables_in(Path(source)) if isinstance(source, (str, os.PathLike)) else []


def _place(source: str | Path) -> Path:
    """The file or folder of a source: an existing path, else the results of a study."""
    if not isinstance(source, (str, os.PathLike)):
        several = isinstance(source, (list, tuple, set))
        raise UserError(
            f"A source of records cannot be {source!r}",
            todo="Give each as an argument of its own: longca.load(*sources)"
            if several
            else "Give the name of a study, a folder of results or a file, as text or a path",
        )
    path = Path(source)
    if path.suffix in FILES or holds_records(path):
        return path
    refuse_without_records(path)
    results = load_config().results
    own = committed(path.stem)
    if own and not holds_records(results / path.stem):
        return own[0]
    return results / load_study(str(source)).name
