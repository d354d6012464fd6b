"""Records as columns and compressed texts: what pages and exports of many records are made from.

100,000 records take more than a gigabyte as objects, and a fraction of it here. A record is decoded again
where it is needed whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import from_json

from longca.core import Hardware
from longca.lab.store.checks.record import CHECKSUM_SINCE, digest_in
from longca.lab.store.columns import COLUMNS
from longca.lab.store.decode import Decoder, encode
from longca.lab.store.rows.relations import BASELINE, NEEDED, RELATED, related
from longca.lab.store.rows.texts import Block, Texts, blocks_of
from longca.lab.store.view import View
from longca.lab.studies import Environment, Record

if TYPE_CHECKING:
    import pyarrow as pa

OWN = tuple(column for column in COLUMNS if column.name not in RELATED)
"""columns that follow from a record alone"""
ENVIRONMENT = "_environment"
MASK_PARAMS = "_mask_params"
ERRORS = "_errors"
HIDDEN = {BASELINE: "str", ENVIRONMENT: "str", MASK_PARAMS: "str", ERRORS: "str"}
"""further columns, of JSON but for the first"""
TYPES = {column.name: column.type for column in COLUMNS} | HIDDEN
ORDER = (  # True and "bwd" last; a number after its name is the text's
    "kind",
    "method",
    "world",
    "mask",
    MASK_PARAMS,
    "direction",
    "seqlen",
    "new_tokens",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "corpus",
    "seed",
    "cell_id",
    "playoff",
    "repeat",
    "started_at",
    "run_id",
)
ROWS_AT_A_TIME = 2_000


class TensorError(NamedTuple):
    """The error of one tensor of a record."""

    tensor: str
    error: float
    budget: float
    ratio: float


@dataclass(frozen=True, eq=False)
class RecordTable:
    """Records as columns, and their texts.

    Texts of a column are numbered (Arrow's dictionary encoding), since most occur in many rows.
    """

    columns: pa.Table
    """`OWN` and `HIDDEN`, one row for each record"""
    texts: Texts
    rows: np.ndarray
    """number of each row's text"""

    @classmethod
    def of(cls, records: RecordTable | Iterable[Record]) -> RecordTable:
        """The table of these records, in their order; a table is returned as it is."""
        if isinstance(records, RecordTable):
            return records
        builder = TableBuilder()
        for record in records:
            builder.add(record)
        return builder.table()

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """One column, with None for missing numbers and "" for missing texts."""
        return values_of(self.columns.column(name))

    def take(self, rows: Sequence[int] | np.ndarray) -> RecordTable:
        """These rows, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        if len(chosen) == len(self) and (chosen == np.arange(len(self))).all():
            return self  # without a second copy
        return RecordTable(self.columns.take(chosen), self.texts, self.rows[chosen])

    @classmethod
    def joined(cls, tables: Sequence[RecordTable]) -> RecordTable:
        """The rows of at least one table, in their order."""
        import pyarrow as pa

        if len(tables) == 1:
            return tables[0]
        columns = pa.concat_tables([table.columns for table in tables])
        starts = [0, *accumulate(len(table.texts) for table in tables)]
        return cls(
            columns.unify_dictionaries().combine_chunks(),
            Texts([block for table in tables for block in table.texts.blocks]),
            np.concatenate([table.rows + start for table, start in zip(tables, starts, strict=False)]),
        )

    def in_order(self) -> RecordTable:
        """The rows sorted by their requests, so that equal records give equal files."""
        import pyarrow as pa
        import pyarrow.compute as pc

        direction = pc.equal(pc.cast(self.columns.column("direction"), pa.string()), "bwd")
        kind = pc.equal(pc.cast(self.columns.column("kind"), pa.string()), "cp")
        keys = {name: _plain(self.columns.column(name)) for name in ORDER}
        keys |= {"direction": pc.cast(direction, pa.int8()), "kind": pc.cast(kind, pa.int8())}
        keys["repeat"] = pc.cast(keys["repeat"], pa.int8())
        keys["_row"] = pa.array(np.arange(len(self)))  # Arrow's sort is not stable
        order = (
            pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
            .to_numpy()
            .astype(np.int64)
        )
        if (np.diff(order) > 0).all():
            return self
        ordered = self.take(order)
        if ordered.texts.is_scattered(ordered.rows.tolist()):
            texts = ordered.texts.gathered(ordered.rows.tolist())
            return RecordTable(ordered.columns, texts, np.arange(len(texts)))
        return ordered

    def with_related(self, hardware: Hardware) -> pa.Table:
        """All columns of the derived table, in their order."""
        import pyarrow as pa

        more = related({name: self.values(name) for name in NEEDED}, hardware)
        columns = {
            column.name: pa.chunked_array([pa.array(more[column.name], pa.float64())])
            if column.name in more
            else self.columns.column(column.name)
            for column in COLUMNS
        }
        return pa.table(columns)

    def lines(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The texts of these rows, as `record_text` writes them."""
        return self.texts.each(self.rows[start:stop].tolist())

    def digests(self) -> Iterator[str]:
        """`digest_of` each record, from its text."""
        return map(digest_in, self.lines())

    def digest(self) -> str:
        """The SHA-256 of all texts in their order."""
        content = hashlib.sha256()
        for line in self.lines():
            content.update(line + b"\n")
        return content.hexdigest()

    def records(self, rows: Iterable[int] | None = None) -> Iterator[Record]:
        """These records, decoded one by one; all by default."""
        decoder = Decoder()
        numbers = self.rows.tolist() if rows is None else [int(self.rows[row]) for row in rows]
        for text in self.texts.each(numbers):
            yield decoder.decode(text)

    def environments(self, *beside: str) -> list[tuple[Environment | None, tuple[Any, ...], int]]:
        """Each environment with values of the columns `beside`, and the number of records with all of them,
        in the order of rows; None for records without an environment."""
        keys = zip(self.values(ENVIRONMENT), *(self.values(name) for name in beside), strict=True)
        counts = Counter(keys)
        texts = {text for text, *_ in counts}
        parsed = {text: Environment.model_validate_json(text) if text else None for text in texts}
        return [(parsed[text], tuple(values), count) for (text, *values), count in counts.items()]

    def errors(self) -> list[list[TensorError]]:
        """The errors of each record's tensors; none of controls."""
        known = {
            text: [TensorError(*each) for each in from_json(text)] if text else []
            for text in set(self.values(ERRORS))
        }
        return [known[text] for text in self.values(ERRORS)]


class TableBuilder:
    """Collects records, each of which may be freed after it was added."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._lines: list[bytes] = []
        self._parts: list[pa.Table] = []
        self._blocks: list[Block] = []
        self._environments: dict[int, tuple[Environment, str]] = {}

    def add(self, record: Record) -> None:
        view = View(record, Hardware())
        self._rows.append((*(column.value(view) for column in OWN), *self._hidden(record, view)))
        self._lines.append(record_text(record))
        if len(self._rows) >= ROWS_AT_A_TIME:
            self._flush()

    def table(self) -> RecordTable:
        """The table of all records that were added."""
        import pyarrow as pa

        self._flush()
        whole = pa.concat_tables(self._parts).unify_dictionaries().combine_chunks()
        return RecordTable(whole, Texts(self._blocks), np.arange(len(whole)))

    def _hidden(self, record: Record, view: View) -> tuple[str, ...]:
        """In the order of `HIDDEN`."""
        cell = record.cell
        return (
            cell.single_gpu_baseline().cell_id if cell.kind == "cp" else "",
            self._environment(record.environment),
            json.dumps(cell.mask_params, sort_keys=True),
            _errors(record, view),
        )

    def _environment(self, environment: Environment | None) -> str:
        if environment is None:
            return ""
        known = self._environments.get(id(environment))
        if known is None or known[0] is not environment:
            known = self._environments[id(environment)] = environment, environment.model_dump_json()
        return known[1]

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows and self._parts:
            return
        names = [column.name for column in OWN] + list(HIDDEN)
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in names)
        arrays = {}
        for name, values in zip(names, columns, strict=True):
            array = pa.array(values, arrow_type(TYPES[name]))
            arrays[name] = array.dictionary_encode() if TYPES[name] == "str" else array
        self._parts.append(pa.table(arrays))
        self._blocks += blocks_of(self._lines)
        self._rows = []
        self._lines = []


def environments_of(records: RecordTable | Iterable[Record]) -> list[tuple[Environment | None, int]]:
    """Each environment and the number of its records; None for records without one."""
    if isinstance(records, RecordTable):
        return [(environment, count) for environment, _, count in records.environments()]
    known: dict[int, tuple[Environment | None, int]] = {}
    for environment in [record.environment for record in records]:  # all alive: ids are of one object each
        _, count = known.get(id(environment), (None, 0))
        known[id(environment)] = environment, count + 1
    return list(known.values())


def record_text(record: Record) -> bytes:
    """The whole record in one line, with a checksum if its schema has one."""
    if record.schema_version >= CHECKSUM_SINCE:
        return encode(record).rstrip(b"\n")
    return record.model_dump_json().encode()


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a type of columns, as in `Column`."""
    import pyarrow as pa

    if kind == "floats":
        return pa.list_(pa.float64())
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    return types[kind]


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; equal texts are one object, and lists are tuples."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        words = whole.dictionary.to_pylist()
        return [words[index] for index in whole.indices.to_pylist()]
    values = column.to_pylist()
    if pa.types.is_list(column.type):
        return [None if value is None else tuple(value) for value in values]
    return values


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as ranks, which sort faster; other columns as they are."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    whole = column.combine_chunks()
    words = whole.dictionary.to_pylist()
    rank = np.empty(len(words), dtype=np.int64)
    rank[sorted(range(len(words)), key=words.__getitem__)] = np.arange(len(words))
    return pa.chunked_array(
        [pa.array(rank[whole.indices.to_numpy()] if len(words) else np.empty(0, np.int64))]
    )


def _errors(record: Record, view: View) -> str:
    if record.accuracy is None or view.is_control:
        return ""
    errors = [
        (tensor, view.error(tensor), budget, view.budget_ratio(tensor))
        for tensor, budget in record.accuracy.budget.items()
    ]
    return json.dumps(errors)
