"""Loading of records as rows, from a study's results folder or from exported files."""

from __future__ import annotations

import platform
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longca.core import in_forks
from longca.lab.store.beside.made import records_digest
from longca.lab.store.beside.playoffs import PlayoffStore
from longca.lab.store.beside.repeats import RepeatStore
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.checks.columns import checked_columns, difference, is_verified
from longca.lab.store.environments.listings import Environments, read_listings, unpacked
from longca.lab.store.load import decoded_rows, first_problems, records_file
from longca.lab.store.load import load as load_records
from longca.lab.store.parquet import ENVIRONMENTS_KEY, BadTable, read_columns, read_metadata, row_groups
from longca.lab.store.rows.kept import rows_of_cells
from longca.lab.store.rows.record_table import RecordTable, TableBuilder, values_of

IDENTITY = ("cell_id", "method_version", "run_id", "started_at", "playoff", "repeat")


@dataclass(frozen=True)
class LoadedRows:
    """Records as rows, and unreadable files and rows."""

    table: RecordTable
    """in order (`RecordTable.in_order`): the cells' own records, those of play-offs, and repeats"""
    problems: list[UnusableFile]
    environments: Environments = field(default_factory=Environments)
    """software listings, as far as the sources contain them"""
    digest: str = ""
    """`records_digest` of a folder of results, of the records that were read here; "" of files and of several
    sources"""

    def own_rows(self) -> list[int]:
        """The rows of the cells' own records."""
        pairs = zip(self.table.values("playoff"), self.table.values("repeat"), strict=True)
        return [row for row, (playoff, is_repeat) in enumerate(pairs) if not playoff and not is_repeat]

    @property
    def num_own(self) -> int:
        return len(self.own_rows())

    @property
    def num_repeats(self) -> int:
        return sum(self.table.values("repeat"))

    @property
    def num_of_playoffs(self) -> int:
        """Records of play-offs, without repeats."""
        return len(self.table) - self.num_own - self.num_repeats


def load_rows(*sources: Path | str) -> LoadedRows:
    """All distinct records of the sources, as `longca.lab.store.load.load` finds them.

    Args:
        sources: results folders (their cells), records.parquet or records.json files.

    Raises:
        UserError: a missing file, or a file of unknown kind. A folder without results has no records.
    """
    _take_frugal_memory()
    tables: list[RecordTable] = []
    problems: list[UnusableFile] = []
    environments = Environments()
    digest = ""
    for source in map(Path, sources):
        parts, damaged, listings, digest = _load(source)
        tables += [part for part in parts if len(part)]
        problems += [*damaged, *(UnusableFile(source, why) for why in listings.problems)]
        environments.merge(listings)
    table = _distinct(RecordTable.joined(tables)).in_order() if tables else RecordTable.of(())
    return LoadedRows(table, problems, environments, digest if len(sources) == 1 else "")


def _take_frugal_memory() -> None:
    """Arrow's memory is from jemalloc from now on, which gives more of it back, but reserves more addresses.

    On other processors jemalloc may not know the size of pages.
    """
    import pyarrow as pa

    addresses_are_free = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    if platform.machine() == "x86_64" and addresses_are_free:
        with suppress(NotImplementedError, AttributeError):  # builds of Arrow may lack it
            pa.set_memory_pool(pa.jemalloc_memory_pool())


def _distinct(table: RecordTable) -> RecordTable:
    """Each record once, the first one of several that are the same."""
    seen = set[tuple[object, ...]]()
    rows = []
    for row, key in enumerate(zip(*(table.values(name) for name in IDENTITY), strict=True)):
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return table if len(rows) == len(table) else table.take(rows)


class _Content(NamedTuple):
    """The content of one source."""

    tables: list[RecordTable]
    problems: list[UnusableFile]
    environments: Environments
    digest: str = ""
    """of a folder of results"""


def _load(path: Path) -> _Content:
    file = records_file(path)
    if file is not None and file.suffix == ".parquet":
        return _from_parquet(file)
    if file is not None:
        loaded = load_records(file)
        return _Content([RecordTable.of(loaded.all_records)], loaded.problems, loaded.environments)
    table, problems = rows_of_cells(CellStore(path))
    digest = records_digest(path, dict(zip(table.values("cell_id"), table.digests(), strict=True)))
    controls, damaged = CellStore(path).read_all_controls()
    cells = table.values("cell_id"), table.values("run_id"), table.values("started_at")
    known = set(zip(*cells, strict=True)) if controls else set()
    parts = [[each for each in controls if (each.cell_id, each.run_id, each.started_at) not in known]]
    for store in (PlayoffStore(path), RepeatStore(path)):
        records, more = store.read_all()
        parts.append(records)
        damaged += more
    beside = [record for part in parts for record in part]
    tables = [table, RecordTable.of(beside)] if beside else [table]
    return _Content(tables, problems + damaged, read_listings(path), digest)


def _from_parquet(path: Path) -> _Content:
    """As in `longca.lab.store.load`, but with one record in memory at a time."""
    try:
        groups = row_groups(path)
        is_trusted = is_verified(path)
        parts = in_forks(lambda number: _from_group(path, number, is_trusted), len(groups))
        listings = read_metadata(path, ENVIRONMENTS_KEY)
    except BadTable as error:
        return _Content([], [UnusableFile(path, str(error))], Environments())
    problems = [
        UnusableFile(path, f"row {rows.start + row + 1} {reason}")
        for rows, (_, reasons) in zip(groups, parts, strict=True)
        for row, reason in sorted(reasons.items())
    ]
    return _Content(
        [table for table, _ in parts],
        first_problems(problems),
        Environments() if listings is None else unpacked(listings),
    )


def _from_group(path: Path, group: int, is_trusted: bool) -> tuple[RecordTable, dict[int, str]]:
    """The usable records of a row group, and the reason for each of its other rows. Raises BadTable.

    Args:
        is_trusted: the columns are not compared with the records.
    """
    builder = TableBuilder()
    rows: list[int] = []
    reasons: dict[int, str] = {}
    for row, record in decoded_rows(path, group):
        if isinstance(record, str):
            reasons[row] = record
        else:
            builder.add(record)
            rows.append(row)
    table = builder.table()
    differences = {} if is_trusted else _differences(path, group, table, rows)
    if differences:
        table = table.take([number for number in range(len(table)) if number not in differences])
    return table, reasons | {rows[number]: reason for number, reason in differences.items()}


def _differences(path: Path, group: int, table: RecordTable, rows: list[int]) -> dict[int, str]:
    """The first difference of each record of a row group from the group's columns, by its number in the
    table. A file may have none of the columns.

    Args:
        rows: the row of each record in the group.
    """
    columns = {column.name: column.type for column in checked_columns()}
    stored = read_columns(path, columns, optional=columns, group=group)
    stored = stored.take(np.array(rows, dtype=np.int64))
    differences: dict[int, str] = {}
    for name in stored.column_names:
        written, derived = stored.column(name), table.columns.column(name)
        if written.equals(derived.cast(written.type)):  # a hundred times as fast as value by value
            continue
        pairs = zip(values_of(written), values_of(derived), strict=True)
        for number, (of_file, of_record) in enumerate(pairs):
            if reason := difference({name: of_record}, {name: of_file}):
                differences.setdefault(number, reason)
    return differences
