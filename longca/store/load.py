"""Records from a study's folder of results, or from exported files. Files that cannot be read are reported, not dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from longca.core.errors import UserError
from longca.core.record import SCHEMA_VERSION, Record
from longca.store.cells import CellStore, UnusableFile
from longca.store.export import RECORD_COLUMN


@dataclass(frozen=True)
class Loaded:
    """Records, and the files and rows that could not be read."""

    records: list[Record]
    problems: list[UnusableFile]


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
