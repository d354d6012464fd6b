"""Records as files for other tools: Parquet (the archive, from which the page can be made again), CSV and
JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import VERSION, load_hardware
from longca.lab.store.columns import COLUMNS
from longca.lab.store.environments.listings import KEY, Environments, packed
from longca.lab.store.files import replace_file
from longca.lab.store.parquet import ENVIRONMENTS_KEY, RECORD_COLUMN
from longca.lab.store.rows.record_table import (
    RecordTable,
    arrow_type,
    environments_of,
    record_text,
    values_of,
)
from longca.lab.studies import SCHEMA_VERSION, Record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LINES_AT_A_TIME = 1_000
ROWS_OF_GROUP = 20_000
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""text with these prefixes is a formula in a spreadsheet, which may start programs or send cells to others"""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
NUMBERS = (float, int, type(None))
SCHEMA_KEY = b"longca.schema_version"
GENERATOR_KEY = b"longca.version"


def export(
    records: RecordTable | Iterable[Record], folder: Path, environments: Environments | None = None
) -> list[Path]:
    """Write records.parquet, records.csv and records.json into `folder`; equal records give equal bytes.

    Args:
        environments: listings; those of the records are written with them.

    Raises:
        UserError: the folder cannot be written; existing files are unchanged.
    """
    table = RecordTable.of(records).in_order()
    files = export_files(table, table.with_related(load_hardware()), environments)
    return [replace_file(folder / name, chunks) for name, chunks in files.items()]


def export_files(
    table: RecordTable, whole: pa.Table, environments: Environments | None = None
) -> dict[str, Iterator[bytes]]:
    """Name → content of each file, in chunks, since the files of many records are large.

    Args:
        table: records, in order (`RecordTable.in_order`).
        whole: all their columns, by `RecordTable.with_related`.
        environments: as in `export`.
    """
    taken = [environment for environment, _ in environments_of(table)]
    listings = {} if environments is None else environments.contents(taken)
    return {
        "records.parquet": _parquet(table, whole, listings),
        "records.csv": _table_csv(whole),
        "records.json": _json(table, listings),
    }


def record_json(record: Record) -> str:
    """The whole record in one line, with a checksum if its schema has one."""
    return record_text(record).decode()


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


def _parquet(table: RecordTable, whole: pa.Table, listings: Mapping[str, Any]) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [(column.name, arrow_type(column.type)) for column in COLUMNS] + [(RECORD_COLUMN, pa.string())]
    schema = pa.schema(fields, {SCHEMA_KEY: str(_schema_version(table)), GENERATOR_KEY: VERSION})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, max(len(table), 1), ROWS_OF_GROUP):
            part = whole.slice(start, ROWS_OF_GROUP)
            texts = pa.array(list(table.lines(start, start + ROWS_OF_GROUP)), pa.binary()).cast(pa.string())
            arrays = [part.column(column.name).cast(arrow_type(column.type)) for column in COLUMNS]
            writer.write_table(pa.table([*arrays, texts], schema=schema))
        if listings:  # not in the schema, of which pyarrow keeps a second copy
            writer.add_key_value_metadata({ENVIRONMENTS_KEY: packed(listings)})
    yield sink.getvalue()


def _table_csv(whole: pa.Table) -> Iterator[bytes]:
    """The derived table, by `csv_chunks`' rules."""
    import pyarrow as pa

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_plain, whole.column_names))
    words = {
        name: list(map(_plain, whole.column(name).combine_chunks().dictionary.to_pylist()))
        for name in whole.column_names
        if pa.types.is_dictionary(whole.schema.field(name).type)
    }
    for start in range(0, len(whole), LINES_AT_A_TIME):
        part = whole.slice(start, LINES_AT_A_TIME).combine_chunks()
        columns = []
        for name in part.column_names:
            column = part.column(name)
            if name in words:
                columns.append([words[name][index] for index in column.combine_chunks().indices.to_pylist()])
            elif pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                columns.append(column.to_pylist())
            else:
                columns.append(list(map(_plain, values_of(column))))
        writer.writerows(zip(*columns, strict=True))
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()


def _json(table: RecordTable, listings: Mapping[str, Any]) -> Iterator[bytes]:
    head = json.dumps(
        {
            "schema_version": _schema_version(table),
            "longca": VERSION,
            **({KEY: dict(listings)} if listings else {}),
        }
    )
    yield f'{head[:-1]}, "records": [\n'.encode()
    for start in range(0, len(table), LINES_AT_A_TIME):
        yield (b",\n" if start else b"") + b",\n".join(table.lines(start, start + LINES_AT_A_TIME))
    yield b"\n]}\n"


def _schema_version(table: RecordTable) -> int:
    """The newest schema of the records, so that files of old records are unchanged, byte for byte."""
    return max(table.values("schema_version"), default=SCHEMA_VERSION)


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
