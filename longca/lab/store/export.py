"""Records as files for other tools: Parquet (the archive, from which the page can be made again), CSV and
JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import VERSION
from longca.lab.store.checks.record import CHECKSUM_SINCE
from longca.lab.store.columns import COLUMNS
from longca.lab.store.decode import encode
from longca.lab.store.environments.listings import KEY, Environments, packed
from longca.lab.store.files import replace_file
from longca.lab.store.parquet import ENVIRONMENTS_KEY, RECORD_COLUMN
from longca.lab.store.table import columns, in_order
from longca.lab.studies import SCHEMA_VERSION, Record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LINES_AT_A_TIME = 1_000
ROWS_OF_GROUP = 20_000
EXPORTED = ("records.parquet", "records.csv", "records.json")
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""text with these prefixes is a formula in a spreadsheet, which may start programs or send cells to others"""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
NUMBERS = (float, int, type(None))
SCHEMA_KEY = b"longca.schema_version"
GENERATOR_KEY = b"longca.version"


def export(records: Iterable[Record], folder: Path, environments: Environments | None = None) -> list[Path]:
    """Write records.parquet, records.csv and records.json into `folder`; equal records give equal bytes.

    Args:
        environments: listings; those of the records are written with them.

    Raises:
        UserError: the folder cannot be written; existing files are unchanged.
    """
    ordered = in_order(records)
    return [
        replace_file(folder / name, chunks)
        for name, chunks in export_files(ordered, columns(ordered), environments).items()
    ]


def export_files(
    ordered: Sequence[Record], values: Mapping[str, list[Any]], environments: Environments | None = None
) -> dict[str, Iterator[bytes]]:
    """Name → content of each file, in chunks, since the files of many records are large.

    Args:
        ordered: records, by `in_order`.
        values: their columns, by `columns`.
        environments: as in `export`.
    """
    listings = {} if environments is None else environments.contents(ordered)
    return {
        "records.parquet": _parquet(ordered, values, listings),
        "records.csv": csv_chunks(values, zip(*values.values(), strict=True)),
        "records.json": _json(ordered, listings),
    }


def record_json(record: Record) -> str:
    """The whole record in one line, with a checksum if its schema has one."""
    return (
        encode(record).decode().rstrip("\n")
        if record.schema_version >= CHECKSUM_SINCE
        else record.model_dump_json()
    )


def csv_bytes(names: Iterable[str], lines: Iterable[Iterable[Any]]) -> bytes:
    """A CSV file: UTF-8, one line for each row, empty fields for missing values, lists separated by blanks.

    Text that a spreadsheet would run as a formula is prefixed with an apostrophe; numbers are unchanged.
    """
    return b"".join(csv_chunks(names, lines))


def csv_chunks(names: Iterable[str], lines: Iterable[Iterable[Any]]) -> Iterator[bytes]:
    """The same in chunks of lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    texts = _Texts()
    writer.writerow([texts[name] for name in names])
    for number, line in enumerate(lines, 1):
        writer.writerow(
            [
                texts[value] if type(value) is str else value if type(value) in NUMBERS else _plain(value)
                for value in line
            ]
        )
        if number % LINES_AT_A_TIME == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def frame_csv(frame: pd.DataFrame) -> bytes:
    """A CSV file of a frame's columns, with empty fields for missing values."""
    return csv_bytes(frame.columns, frame.astype(object).where(frame.notna(), None).values.tolist())


def _parquet(
    ordered: Sequence[Record], values: Mapping[str, list[Any]], listings: Mapping[str, Any]
) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Callable[[], pa.DataType]] = {
        "str": pa.string,
        "int": pa.int64,
        "float": pa.float64,
        "bool": pa.bool_,
        "floats": lambda: pa.list_(pa.float64()),
    }
    fields = [(column.name, types[column.type]()) for column in COLUMNS] + [(RECORD_COLUMN, pa.string())]
    schema = pa.schema(fields, {SCHEMA_KEY: str(_schema_version(ordered)), GENERATOR_KEY: VERSION})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, max(len(ordered), 1), ROWS_OF_GROUP):
            rows = slice(start, start + ROWS_OF_GROUP)
            parts = {name: column[rows] for name, column in values.items()} | {
                RECORD_COLUMN: list(map(record_json, ordered[rows]))
            }
            writer.write_table(
                pa.table([pa.array(parts[name], kind) for name, kind in fields], schema=schema)
            )
        if listings:  # not in the schema, of which pyarrow keeps a second copy
            writer.add_key_value_metadata({ENVIRONMENTS_KEY: packed(listings)})
    yield sink.getvalue()


def _json(ordered: Sequence[Record], listings: Mapping[str, Any]) -> Iterator[bytes]:
    head = json.dumps(
        {
            "schema_version": _schema_version(ordered),
            "longca": VERSION,
            **({KEY: dict(listings)} if listings else {}),
        }
    )
    yield f'{head[:-1]}, "records": [\n'.encode()
    for start in range(0, len(ordered), LINES_AT_A_TIME):
        yield (",\n" if start else "").encode() + ",\n".join(
            map(record_json, ordered[start : start + LINES_AT_A_TIME])
        ).encode()
    yield b"\n]}\n"


def _schema_version(records: Sequence[Record]) -> int:
    """The newest schema of the records, so that files of old records are unchanged, byte for byte."""
    return max((record.schema_version for record in records), default=SCHEMA_VERSION)


class _Texts(dict[str, Any]):
    """Texts in CSV format, each formatted once, since most occur in many rows."""

    def __missing__(self, text: str) -> Any:
        self[text] = plain = _plain(text)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(repr(part) for part in value)
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
