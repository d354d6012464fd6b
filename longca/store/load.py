"""Records from a study's folder of results, or from exported files. Files that cannot be read are reported, not dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from longca.core.cell import LATER_FIELDS
from longca.core.errors import UserError
from longca.core.plugin import PACKAGE_ROOT
from longca.core.record import SCHEMA_VERSION, Record
from longca.store.cells import CellStore, UnusableFile
from longca.store.export import RECORD_COLUMN
from longca.store.table import derived

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("cell_id", "method_version", "run_id", "started_at")  # equal in all of these: the same record

COMMITTED = PACKAGE_ROOT.parent / "reports" / "h200"  # this project's own records, in a checkout, wherever the working folder is
FILES = (".parquet", ".json")  # files of records end so


@dataclass(frozen=True)
class Loaded:
    """Records, and the files and rows that could not be read."""

    records: list[Record]
    problems: list[UnusableFile]


def holds_records(folder: Path) -> bool:
    """True for a folder of results, or one of exported records."""
    return (folder / "cells").is_dir() or (folder / "records.parquet").is_file()


def load(*sources: Path | str) -> Loaded:
    """All records of the sources, a record that stands in several of them once.

    Args:
        sources: folders of results (their cells), records.parquet or records.json files.

    Raises:
        UserError: a file is not there, or is of no kind that can be read. A folder without results holds no records.
    """
    records: dict[tuple[str, ...], Record] = {}
    problems: list[UnusableFile] = []
    for source in map(Path, sources):
        found, damaged = _load(source)
        for record in found:
            records.setdefault((record.cell_id, record.method_version, record.run_id, record.started_at), record)
        problems += damaged
    return Loaded(list(records.values()), problems)


def load_columns(sources: Sequence[Path], columns: Sequence[str]) -> tuple[pd.DataFrame, list[UnusableFile]]:
    """These columns of the derived table of all sources, and what could not be read. Of Parquet files nothing else is read.

    Columns that a file lacks, since it was written before they were there, are made from its records.

    Args:
        sources: as of `load`.

    Raises:
        UserError: as of `load`.
    """
    import pandas as pd

    wanted = list(dict.fromkeys((*columns, *IDENTITY)))
    frames: list[pd.DataFrame] = []
    problems: list[UnusableFile] = []
    for path in sources:
        file = path / "records.parquet" if path.is_dir() and not (path / "cells").is_dir() else path
        frame = _columns_of_parquet(file, wanted) if file.suffix == ".parquet" and file.is_file() else None
        if frame is None:
            found, damaged = _load(path)
            frame = derived(found).loc[:, wanted]
            problems += damaged
        frames.append(frame)
    table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    return table.drop_duplicates(list(IDENTITY), ignore_index=True).loc[:, list(columns)], problems


def _columns_of_parquet(path: Path, columns: list[str]) -> pd.DataFrame | None:
    """None where the file is damaged, or from before one of the columns: then its records must tell."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            present = set(file.schema_arrow.names)
            lacking = [name for name in columns if name not in present]
            if not set(lacking) <= LATER_FIELDS.keys():
                return None
            frame = file.read([name for name in columns if name in present]).to_pandas()
    except (pa.ArrowException, OSError):
        return None
    usual = {name: LATER_FIELDS[name] for name in lacking}
    return frame.assign(**{name: "" if value == {} else value for name, value in usual.items()}).loc[:, columns]


def _load(path: Path) -> tuple[list[Record], list[UnusableFile]]:
    if path.suffix in (".parquet", ".json"):
        if not path.is_file():
            raise UserError(f"There is no file '{path}'", todo="`longca export` writes records.parquet and records.json")
        return _from_parquet(path) if path.suffix == ".parquet" else _from_json(path)
    if path.is_file():
        raise UserError(f"'{path}' holds no records", todo="Give a study's folder of results, or a records.parquet")
    if not (path / "cells").is_dir() and (path / "records.parquet").is_file():
        return _from_parquet(path / "records.parquet")
    return CellStore(path).read_all()


def _from_parquet(path: Path) -> tuple[list[Record], list[UnusableFile]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        texts = pq.read_table(path, columns=[RECORD_COLUMN], page_checksum_verification=True)[RECORD_COLUMN].to_pylist()
    except (pa.ArrowException, KeyError, OSError) as error:
        return [], [UnusableFile(path, f"is damaged or no table of records ({_line(error)})")]
    return _parse(path, texts)


def _from_json(path: Path) -> tuple[list[Record], list[UnusableFile]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return [], [UnusableFile(path, f"is damaged ({_line(error)})")]
    entries = content.get("records") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        return [], [UnusableFile(path, "is no list of records")]
    return _parse(path, [json.dumps(entry) for entry in entries])


def _parse(path: Path, texts: Iterable[str | None]) -> tuple[list[Record], list[UnusableFile]]:
    records: list[Record] = []
    problems: list[UnusableFile] = []
    for number, text in enumerate(texts, 1):
        try:
            content = json.loads(text or "")
            version = content.get("schema_version") if isinstance(content, dict) else None
            if version == SCHEMA_VERSION:
                records.append(Record.model_validate(content))
                continue
            reason = f"has schema version {version}, this longca reads {SCHEMA_VERSION}"
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"is damaged ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        except (ValueError, RecursionError):
            reason = "is damaged (not JSON)"
        problems.append(UnusableFile(path, f"row {number} {reason}"))
    return records, problems


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
