"""Tables of records in Parquet, read within limits: a small file may expand beyond the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core.reading import RECORDS, ROWS, check_file, too_large

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RECORD_COLUMN = "record"
"""the column with the whole record as JSON, from which the others are derived"""

ENVIRONMENTS_KEY = b"longca.environments"
"""the metadata key of environment listings, written by `longca.lab.store.environments.listings.packed`"""


class BadTable(Exception):
    """A file that is damaged, not a table of records, or beyond a limit; the message continues the file
    name."""


def row_groups(path: Path) -> list[range]:
    """The rows of each row group of a file. Raises BadTable."""
    with _told():
        facts = _opened(path, ()).metadata
        ends = [0, *accumulate(facts.row_group(number).num_rows for number in range(facts.num_row_groups))]
        return list(map(range, ends, ends[1:]))


def read_texts(path: Path, column: str, group: int | None = None) -> Iterator[str | None]:
    """An iterator over the texts of one column, in one row group if it is given; equal texts share memory.
    Raises BadTable."""
    import pyarrow as pa

    with _told():
        file = _opened(path, [column])
        for number in range(file.num_row_groups) if group is None else (group,):
            table = _within_limits(path, file.read_row_group(number, [column], use_threads=False))
            # Arrow silently skips some damaged pages
            if table.num_rows != file.metadata.row_group(number).num_rows:
                raise ValueError("rows are missing")
            kind = table.schema.field(column).type
            if not _is_as_wanted(kind, pa.string()):
                raise KeyError(f"column '{column}' is of another type: {kind}")
            for chunk in table.column(column).chunks:
                numbered = chunk if _is_numbered(chunk.type) else chunk.dictionary_encode()
                words = numbered.dictionary
                yield from (
                    None if index is None else words[index].as_py() for index in numbered.indices.to_pylist()
                )


def read_columns(
    path: Path, columns: Mapping[str, str], *, optional: Collection[str] = (), group: int | None = None
) -> pa.Table:
    """Existing columns of the derived table, in their order.

    Args:
        columns: name → type, as in `Column`.
        group: the row group that is read; by default all.

    Raises:
        BadTable: also for a missing column that is not `optional`, or a column with another type than that of
            `longca export`.
    """
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "floats": pa.list_(pa.float64()),
    }
    wanted = {name: types[kind] for name, kind in columns.items()}
    with _told():
        file = _opened(path, columns)
        there = set(file.schema_arrow.names)
        present = [name for name in columns if name in there]
        if not set(columns) - set(present) <= set(optional):
            raise KeyError("a column is not there")
        content = (
            file.read(present, use_threads=False)
            if group is None
            else file.read_row_group(group, present, use_threads=False)
        )
        table = _within_limits(path, content)
        for field in table.schema:
            if not _is_as_wanted(field.type, wanted[field.name]):
                raise KeyError(f"column '{field.name}' is of another type")
        return table.cast(pa.schema([(name, wanted[name]) for name in present]))


def read_metadata(path: Path, key: bytes) -> bytes | None:
    """The text of this key in a file's metadata. Raises BadTable."""
    import pyarrow.parquet as pq

    with _told():
        check_file(path, path.stat(), RECORDS)
        return (pq.read_metadata(path).metadata or {}).get(key)


def _opened(path: Path, columns: Collection[str]) -> pq.ParquetFile:
    """The file, with dictionary encoding for texts in these columns. Raises OSError if it declares more than
    a limit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, path.stat(), RECORDS)
    facts = pq.read_metadata(path)
    # by whole row groups: querying the metadata of a column of a damaged file may crash this process
    if (
        sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
        > RECORDS.num_bytes()
    ):
        raise too_large(path, RECORDS)
    if facts.num_rows > ROWS.value():
        raise too_large(path, ROWS)
    texts = [
        field.name
        for field in facts.schema.to_arrow_schema()
        if field.name in columns and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]
    return pq.ParquetFile(path, metadata=facts, read_dictionary=texts, page_checksum_verification=True)


def _within_limits(path: Path, table: pa.Table) -> pa.Table:
    """The same table. Raises OSError if its texts, written out, are larger than the limit."""
    import pyarrow.compute as pc

    total = pc.sum
    length = pc.binary_length
    numbered = [chunk for column in table.columns if _is_numbered(column.type) for chunk in column.chunks]
    if (
        sum(total(length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in numbered)
        > RECORDS.num_bytes()
    ):
        raise too_large(path, RECORDS)
    return table


def _is_numbered(kind: pa.DataType) -> Any:
    import pyarrow as pa

    return pa.types.is_dictionary(kind)


def _is_as_wanted(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """True for a column of this type, and for what pandas makes of it: large texts and lists, whole numbers
    as floats where some are missing, and no type where all are."""
    import pyarrow as pa

    value = kind.value_type if _is_numbered(kind) else kind
    if pa.types.is_large_string(value):
        value = pa.string()
    if pa.types.is_list(value) or pa.types.is_large_list(value):
        value = pa.list_(value.value_type)
    is_number = pa.types.is_float64(value) and pa.types.is_integer(wanted)
    return value == wanted or is_number or pa.types.is_null(value)


@contextmanager
def _told() -> Iterator[None]:
    """A context that converts errors of Arrow and of the system to BadTable."""
    import pyarrow as pa

    try:
        yield
    except MemoryError as error:  # Arrow's own, too
        raise BadTable("cannot be read (there is not enough memory)") from error
    except (pa.ArrowException, OSError, LookupError, ValueError, AttributeError) as error:
        cause = getattr(error, "strerror", None)
        text = " ".join(str(error).split())[:200]
        raise BadTable(
            f"cannot be read ({cause})" if cause else f"is damaged or no table of records ({text})"
        ) from error
