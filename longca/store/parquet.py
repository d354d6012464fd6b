"""Tables of records in Parquet, read within limits: a small file may claim to hold more than there is memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core.reading import RECORDS, ROWS, check_file, too_large

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RECORD_COLUMN = "record"
"""the column that holds the whole record as JSON: the truth, of which the others are derived"""

ENVIRONMENTS_KEY = b"longca.environments"
"""the key of the metadata that holds the listings of environments, as `longca.store.environments.listings.packed` writes them"""


class BadTable(Exception):
    """A file that is damaged, no table of records or beyond a limit; it says which, to follow upon the name of the file."""


def read_texts(path: Path, column: str) -> Iterator[str | None]:
    """The texts of one column, one after another: equal texts take memory once, however often a file repeats them. Raises BadTable."""
    with _told():
        file = _opened(path, [column])
        for number in range(file.num_row_groups):
            table = _within_limits(path, file.read_row_group(number, [column], use_threads=False))
            if table.num_rows != file.metadata.row_group(number).num_rows:  # of some damaged pages Arrow reads nothing, and says nothing
                raise ValueError("rows are missing")
            for chunk in table.column(column).chunks:
                words = chunk.dictionary
                yield from (None if index is None else words[index].as_py() for index in chunk.indices.to_pylist())


def read_columns(path: Path, columns: Mapping[str, str], *, optional: Collection[str] = ()) -> pa.Table:
    """Columns of the derived table, in their order, as far as the file has them.

    Args:
        columns: name → type, as of `Column`.

    Raises:
        BadTable: also where a column that is not `optional` is not there, or one is of another type than `longca export` gives it.
    """
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "floats": pa.list_(pa.float64())}
    wanted = {name: types[kind] for name, kind in columns.items()}
    with _told():
        file = _opened(path, columns)
        there = set(file.schema_arrow.names)
        present = [name for name in columns if name in there]
        if not set(columns) - set(present) <= set(optional):
            raise KeyError("a column is not there")
        table = _within_limits(path, file.read(present, use_threads=False))
        for field in table.schema:
            if (field.type.value_type if _is_numbered(field.type) else field.type) != wanted[field.name]:
                raise KeyError(f"column '{field.name}' is of another type")
        return table.cast(pa.schema([(name, wanted[name]) for name in present]))


def read_metadata(path: Path, key: bytes) -> bytes | None:
    """The text that a file's metadata has under this key. Raises BadTable."""
    import pyarrow.parquet as pq

    with _told():
        check_file(path, path.stat(), RECORDS)
        return (pq.read_metadata(path).metadata or {}).get(key)


def _opened(path: Path, columns: Collection[str]) -> pq.ParquetFile:
    """The file, of which texts in these columns are read as numbers of words. Raises OSError where it says that it is beyond a limit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, path.stat(), RECORDS)
    facts = pq.read_metadata(path)
    # of whole groups of rows: of a damaged file, to ask for the facts of a column may end this process
    if sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)) > RECORDS.num_bytes():
        raise too_large(path, RECORDS)
    if facts.num_rows > ROWS.value():
        raise too_large(path, ROWS)
    texts = [field.name for field in facts.schema.to_arrow_schema() if field.name in columns and pa.types.is_string(field.type)]
    return pq.ParquetFile(path, metadata=facts, read_dictionary=texts, page_checksum_verification=True)


def _within_limits(path: Path, table: pa.Table) -> pa.Table:
    """The same table. Raises OSError if its texts, written out, are larger than the limit."""
    import pyarrow.compute as pc

    total, length = pc.sum, pc.binary_length  # pyright: ignore[reportAttributeAccessIssue]  # made when pyarrow is imported
    numbered = [chunk for column in table.columns if _is_numbered(column.type) for chunk in column.chunks]
    if sum(total(length(chunk.dictionary).take(chunk.indices)).as_py() or 0 for chunk in numbered) > RECORDS.num_bytes():
        raise too_large(path, RECORDS)
    return table


def _is_numbered(kind: pa.DataType) -> Any:
    import pyarrow as pa

    return pa.types.is_dictionary(kind)


@contextmanager
def _told() -> Iterator[None]:
    """All that Arrow and the system raise as BadTable."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, LookupError, ValueError, AttributeError, MemoryError) as error:
        cause = getattr(error, "strerror", None)
        text = " ".join(str(error).split())[:200]
        raise BadTable(f"cannot be read ({cause})" if cause else f"is damaged or no table of records ({text})") from error
