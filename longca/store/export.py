"""Records as files for other tools: Parquet (the archive, from which the page can be made again), CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca import __version__
from longca.core.record import SCHEMA_VERSION, Record
from longca.store.columns import COLUMNS
from longca.store.files import replace_file
from longca.store.table import columns, in_order

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

EXPORTED = ("records.parquet", "records.csv", "records.json")
RECORD_COLUMN = "record"
"""the column of the Parquet file that holds the whole record as JSON: the truth, of which the others are derived"""
NUMBERS = (float, int, type(None))
SCHEMA_KEY, GENERATOR_KEY = b"longca.schema_version", b"longca.version"


def export(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write records.parquet, records.csv and records.json into `folder`; the same records give the same bytes.

    Raises:
        UserError: the folder cannot be written; files that were there stay as they were.
    """
    ordered = in_order(records)
    return [replace_file(folder / name, content) for name, content in export_files(ordered, columns(ordered))]


def export_files(ordered: Sequence[Record], values: dict[str, list[Any]]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file, one after the other, since those of many records are large.

    Args:
        ordered: records, by `in_order`.
        values: their columns, by `columns`.
    """
    truths = [record_json(record) for record in ordered]
    yield "records.parquet", _parquet(values, truths)
    yield "records.csv", csv_bytes(values, zip(*values.values(), strict=True))
    yield "records.json", _json(truths)


def record_json(record: Record) -> str:
    """The whole record in one line."""
    return record.model_dump_json()


def csv_bytes(names: Iterable[str], lines: Iterable[Iterable[Any]]) -> bytes:
    """A CSV file: UTF-8, one line a row, empty where there is no value, lists separated by blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    texts = _Texts()
    for line in lines:
        writer.writerow([texts[value] if type(value) is str else value if type(value) in NUMBERS else _plain(value) for value in line])
    return text.getvalue().encode()


def frame_csv(frame: pd.DataFrame) -> bytes:
    """A CSV file of a frame's columns, empty where there is no value."""
    return csv_bytes(frame.columns, frame.astype(object).where(frame.notna(), None).values.tolist())


def _parquet(values: dict[str, list[Any]], truths: list[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Callable[[], pa.DataType]] = {
        "str": pa.string, "int": pa.int64, "float": pa.float64, "bool": pa.bool_, "floats": lambda: pa.list_(pa.float64())}
    arrays = {column.name: pa.array(values[column.name], types[column.type]()) for column in COLUMNS}
    arrays[RECORD_COLUMN] = pa.array(truths, pa.string())
    facts = {SCHEMA_KEY: str(SCHEMA_VERSION), GENERATOR_KEY: __version__}
    table = pa.table(arrays).replace_schema_metadata(facts)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def _json(truths: list[str]) -> bytes:
    head = json.dumps({"schema_version": SCHEMA_VERSION, "longca": __version__})
    lines = ",\n".join(truths)
    return f'{head[:-1]}, "records": [\n{lines}\n]}}\n'.encode()


class _Texts(dict[str, Any]):
    """Texts as a CSV file has them. Most stand in many rows, so each is made once."""

    def __missing__(self, text: str) -> Any:
        self[text] = found = _plain(text)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(repr(part) for part in value)
    return " ".join(value.split()) if isinstance(value, str) else value
