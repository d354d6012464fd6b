"""Tables of records in Parquet, read within limits: a small file may claim to hold more than there is memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from longca.core.limits import RECORDS, ROWS
from longca.core.reading import check_file, too_large
from longca.store.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

TABLE_ERRORS = (pa.ArrowException, OSError, LookupError, ValueError, MemoryError)
"""all that the functions here raise: the file is damaged, no table of records, or beyond a limit"""

TYPES: dict[str, pa.DataType] = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "floats": pa.list_(pa.float64())}
COLUMN_TYPES = {column.name: TYPES[column.type] for column in COLUMNS}


def read_texts(path: Path, column: str) -> Iterator[str | None]:
    """The texts of one column, one after another: equal texts take memory once, however often a file repeats them."""
    with _opened(path, [column]) as file:
        for number in range(file.num_row_groups):
            for chunk in _within_limits(path, file.read_row_group(number, [column])).column(column).chunks:
                if not pa.types.is_dictionary(chunk.type) or not pa.types.is_string(chunk.type.value_type):
                    raise KeyError(f"column '{column}' holds no texts")
                words = chunk.dictionary
                yield from (None if index is None else words[index].as_py() for index in chunk.indices.to_pylist())


def read_columns(path: Path, columns: Collection[str], *, optional: Collection[str] = ()) -> pd.DataFrame:
    """Columns of the derived table, in their order, as far as the file has them.

    Raises:
        KeyError: a column that is not `optional` is not there, or a column is of another type than `longca export` gives it.
    """
    with _opened(path, columns) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        if not set(columns) - set(present) <= set(optional):
            raise KeyError("a column is not there")
        table = _within_limits(path, file.read(present))
    for name in present:
        kind = table.schema.field(name).type
        if (kind.value_type if pa.types.is_dictionary(kind) else kind) != COLUMN_TYPES[name]:
            raise KeyError(f"column '{name}' is of another type")
    return table.cast(pa.schema([(name, COLUMN_TYPES[name]) for name in present])).to_pandas()


def _opened(path: Path, columns: Collection[str]) -> pq.ParquetFile:
    """The file, of which texts are read as numbers of words. Raises where it says that these columns are larger than the limits."""
    check_file(path, os.stat(path), RECORDS)
    facts = pq.read_metadata(path)
    # of whole groups, not of these columns alone: of a damaged file, facts of a column may end this process
    if sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)) > RECORDS.num_bytes():
        raise too_large(path, RECORDS)
    if facts.num_rows > ROWS.value():
        raise too_large(path, ROWS)
    texts = [field.name for field in facts.schema.to_arrow_schema() if field.name in columns and pa.types.is_string(field.type)]
    return pq.ParquetFile(path, metadata=facts, read_dictionary=texts, page_checksum_verification=True)


def _within_limits(path: Path, table: pa.Table) -> pa.Table:
    """The same table. Raises OSError if its texts, written out, are larger than the limit."""
    size = 0
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                size += pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
    if size > RECORDS.num_bytes():
        raise too_large(path, RECORDS)
    return table
