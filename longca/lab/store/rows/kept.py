"""The rows of a study's cells, kept in a file beside them with checksums.

Reading and checking 100,000 records and deriving their columns takes half a minute. So rows are kept with the
size, time and inode of each cell's file, and a cell is read again when one of these differs. A cell that was
written less than `SETTLED_NS` before it was read is read again, too: clocks of file systems have ticks, and a
second write in the same tick would not be seen. The file has the SHA-256 of its content; one that is damaged,
that other code wrote, or that was made when other secrets were hidden, is made again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from longca.core import in_forks
from longca.core.reading import RECORDS, read_file
from longca.core.secrets import hidden_values
from longca.lab.code import files_digest, reached
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.files import write_atomically
from longca.lab.store.index import FEWEST, Stamp, files_of_cells
from longca.lab.store.rows.record_table import (
    HIDDEN,
    OWN,
    TYPES,
    RecordTable,
    TableBuilder,
    arrow_type,
    values_of,
)
from longca.lab.store.rows.texts import Block, Texts
from longca.lab.studies import Record

if TYPE_CHECKING:
    import pyarrow as pa

NAME = ".records.table"
SETTLED_NS = 2_000_000_000
AT_A_TIME = 4_000
"""cells that one process reads before it gives their rows back"""
DIGEST = 64  # characters of the file's first line
SIZE = "_size"
TIME = "_time_ns"
INODE = "_inode"
SCRYPT = {"n": 1 << 14, "r": 8, "p": 1}
CHANGES = (1, 1, 1)
"""no stamp of a file: the cell is read again"""


class _Head(NamedTuple):
    """The second line of the file."""

    code: str
    salt: str
    secrets: str
    num_bytes: int
    """of the columns, in Parquet, which follow that line"""
    blocks: list[tuple[int, int, int]]
    """texts, uncompressed and compressed bytes of each block of texts, which follow the columns"""


class _Kept(NamedTuple):
    table: RecordTable
    stamps: dict[str, tuple[int, Stamp]]
    """cell → its row, and the stamp of its file"""


def rows_of_cells(store: CellStore) -> tuple[RecordTable, list[UnusableFile]]:
    """The rows of a study's cells, sorted by `RecordTable.in_order`, and all invalid files. Reads only cells
    that have changed."""
    files, strays = files_of_cells(store)
    problems = [store.load(stray.path) for stray in strays]
    unusable = [problem for problem in problems if isinstance(problem, UnusableFile)]
    path = store.cells / NAME
    kept = _read(path) if len(files) >= FEWEST else None
    known = {} if kept is None else kept.stamps
    now = time.time_ns()
    same = {
        name: known[name][0] for name, stamp in files.items() if name in known and known[name][1] == stamp
    }
    if kept is not None and len(same) == len(files) == len(kept.table):
        return kept.table, unusable
    others = [name for name in files if name not in same]
    parts = in_forks(
        lambda number: _read_cells(store, others[number * AT_A_TIME : (number + 1) * AT_A_TIME]),
        max(1, -(-len(others) // AT_A_TIME)),
    )
    unusable += [problem for _, problems in parts for problem in problems]
    tables = [table for table, _ in parts]
    if kept is not None:
        tables.insert(0, kept.table.take(sorted(same.values())))
    table = RecordTable.joined(tables).in_order()
    if len(table) >= FEWEST and (kept is None or len(table) != len(same) or len(same) != len(kept.table)):
        stamps = [files[name] for name in table.values("cell_id")]
        settled = [stamp if stamp[1] + SETTLED_NS < now else CHANGES for stamp in stamps]
        with suppress(OSError):  # without write access, or with a full disk, cells are read each time
            write_atomically(path, _content(table, settled))
    return table, sorted(unusable, key=lambda problem: problem.path.name)


def _read_cells(store: CellStore, names: Sequence[str]) -> tuple[RecordTable, list[UnusableFile]]:
    builder = TableBuilder()
    unusable = []
    for name in names:
        record = store.read(name)
        if isinstance(record, Record):
            builder.add(record)
        elif record is not None:
            unusable.append(record)
    return builder.table(), unusable


def _content(table: RecordTable, stamps: list[Stamp]) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = table.columns
    for name, values in zip((SIZE, TIME, INODE), zip(*stamps, strict=True), strict=True):
        whole = whole.append_column(name, pa.chunked_array([pa.array(values, pa.uint64())]))
    sink = pa.BufferOutputStream()
    pq.write_table(whole, sink, compression="zstd", store_schema=False)
    columns = sink.getvalue()
    texts = Texts.of(table.lines()) if not _is_whole(table) else table.texts
    salt = secrets.token_hex(16)
    sizes = [(block.num_texts, block.num_bytes, len(block.content)) for block in texts.blocks]
    head = to_json(_Head(_code(), salt, _of_secrets(salt), columns.size, sizes)) + b"\n"
    parts = [head, columns, *(block.content for block in texts.blocks)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [digest.hexdigest().encode() + b"\n", *parts]


def _is_whole(table: RecordTable) -> bool:
    """True if the table's texts are those of its rows, in their order."""
    return len(table.texts) == len(table) and bool((table.rows == np.arange(len(table))).all())


def _read(path: Path) -> _Kept | None:
    """The table in the file; None if it is missing, damaged, or of other code or secrets."""
    try:
        content = memoryview(read_file(path, RECORDS))  # not mapped: it may shrink meanwhile
        if hashlib.sha256(content[DIGEST + 1 :]).hexdigest().encode() != bytes(content[:DIGEST]):
            return None
        line = bytes(content[DIGEST + 1 : _end_of_line(content)])
        head = _HEAD.validate_json(line)
    except (OSError, ValueError, ValidationError):
        return None
    if head.code != _code() or not hmac.compare_digest(head.secrets, _of_secrets(head.salt)):
        return None
    start = DIGEST + 1 + len(line) + 1
    end = start + head.num_bytes
    if end + sum(size for _, _, size in head.blocks) != len(content):
        return None
    return _parsed(content[start:end], Texts(list(_blocks(content[end:], head.blocks))))


def _parsed(columns: memoryview, texts: Texts) -> _Kept | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = [name for name, kind in TYPES.items() if kind == "str"]
    try:
        whole = pq.read_table(
            pa.BufferReader(pa.py_buffer(columns)), read_dictionary=words, use_threads=False
        )
        whole = whole.unify_dictionaries().combine_chunks()
        table = whole.select([*(column.name for column in OWN), *HIDDEN])
        stamps = [whole.column(name).to_pylist() for name in (SIZE, TIME, INODE)]
        cells = values_of(whole.column("cell_id"))
    except (pa.ArrowException, OSError, LookupError, ValueError):
        return None
    if len(table) != len(texts) or any(not _is_of(table, name) for name in table.column_names):
        return None
    numbered = enumerate(zip(*stamps, strict=True))
    known = {cell: (row, stamp) for cell, (row, stamp) in zip(cells, numbered, strict=True)}
    return _Kept(RecordTable(table, texts, np.arange(len(table))), known)


def _is_of(table: pa.Table, name: str) -> bool:
    """True if a column has the type that is expected."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    return (kind.value_type if pa.types.is_dictionary(kind) else kind) == arrow_type(TYPES[name])


def _blocks(content: memoryview, sizes: list[tuple[int, int, int]]) -> Iterator[Block]:
    start = 0
    for num_texts, num_bytes, size in sizes:
        yield Block(num_texts, num_bytes, content[start : start + size])
        start += size


def _end_of_line(content: memoryview) -> int:
    """The position of the end of the second line."""
    start = DIGEST + 1
    size = 1 << 16
    while start < len(content):
        position = bytes(content[start : start + size]).find(b"\n")
        if position >= 0:
            return start + position
        start += size
    raise ValueError("there is no second line")


def _code() -> str:
    """All that rows depend on beside records: this code, and the libraries that add and write numbers."""
    import pyarrow as pa

    version = ".".join(map(str, sys.version_info[:3]))
    return f"{files_digest(reached([Path(__file__)]))} {version} {pa.__version__}"


def _of_secrets(salt: str) -> str:
    """A slow, salted hash of the values that are hidden in texts: it must not help to guess them."""
    values = "\0".join(hidden_values(os.environ)).encode("utf-8", "surrogateescape")
    return hashlib.scrypt(values, salt=salt.encode(), **SCRYPT).hex() if values else ""


_HEAD = TypeAdapter(_Head)
