"""Loading of records from a study's results folder, or from exported files. Unreadable files are reported,
not dropped."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from longca.core import UserError, matches
from longca.core.reading import RECORDS, ROOT, JsonError, origin, read_file, read_json
from longca.lab.store.beside.playoffs import PlayoffStore
from longca.lab.store.beside.repeats import RepeatStore
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.checks.columns import checked_columns, differing_rows, is_verified
from longca.lab.store.columns import COLUMNS
from longca.lab.store.decode import Decoder, Unusable, decode_content
from longca.lab.store.environments.listings import KEY, Environments, read_listings, unpacked
from longca.lab.store.parquet import (
    ENVIRONMENTS_KEY,
    RECORD_COLUMN,
    BadTable,
    read_columns,
    read_metadata,
    read_texts,
)
from longca.lab.store.table import derived, is_own, of_grid
from longca.lab.store.text import folder_of_gpu
from longca.lab.studies import LATER_FIELDS, Record
from longca.lab.studies.checkout import studies_folder

if TYPE_CHECKING:
    import pandas as pd

# identity of records in older tables: records that agree in all of these are the same
IDENTITY = ("cell_id", "method_version", "run_id", "started_at", "playoff", "repeat")
NEW_TOKENS = "new_tokens"  # a later column: as many as `seqlen` in older records
LATER_COLUMNS = {
    **{name: usual for name, usual in LATER_FIELDS.items() if name != NEW_TOKENS},
    "playoff": "",
    "playoff_rounds": None,
    "playoff_end": "",
    "repeat": False,
    "duty": float("nan"),
}

COMMITTED = (origin() or ROOT) / "reports"  # this project's own records, wherever the working folder is
FIRST = ("h100", "h200")  # of its folders, each of one model of GPU; the study's GPU first
MOST_NAMED = 100  # invalid rows of one file in a report
# later columns: unknown for older records
DISTURBED = "disturbed"
DETERMINISTIC = "deterministic"
# a later column, and the key of a GPU's UUID in the text of a record
GPUS = "gpus"
_UUID = re.compile(r'"uuid": ?"([^"]*)"')
FILES = (".parquet", ".json")  # suffixes of record files


@dataclass(frozen=True)
class Loaded:
    """Records, and unreadable files and rows."""

    records: list[Record]
    """the cells' own records"""
    problems: list[UnusableFile]
    playoffs: list[Record] = field(default_factory=list)
    """play-offs of the same cells: see `longca.lab.studies.playoff`"""
    repeats: list[Record] = field(default_factory=list)
    """of the same cells, measured a second time, twins of play-offs among them: see
    `longca.lab.studies.playoff.repeats`"""
    environments: Environments = field(default_factory=Environments)
    """software listings, as far as the sources contain them"""

    @property
    def all_records(self) -> list[Record]:
        """The cells' own records, those of play-offs, and repeats, in this order."""
        return [*self.records, *self.playoffs, *self.repeats]


class _Content(NamedTuple):
    """The content of one source."""

    records: list[Record]
    problems: list[UnusableFile]
    environments: Environments


def holds_records(folder: Path) -> bool:
    """True for a results folder, or a folder of exported records."""
    return (folder / "cells").is_dir() or (folder / "records.parquet").is_file()


def committed(study: str = "*") -> list[Path]:
    """The files of the committed records of one study, or of all studies: those of each folder of a GPU
    model, the study's GPU first."""
    paths = COMMITTED.glob(f"*/{study}.parquet")
    return sorted(paths, key=lambda path: (path.parent.name not in FIRST, path.parent.name, path.name))


def refuse_without_records(source: Path) -> None:
    """Raises UserError for a file or folder that is there and is no source of records. The name of a study
    and a study's YAML file are sources."""
    is_study = (studies_folder() / f"{source}.yaml").exists() or source.suffix in (".yaml", ".yml")
    if source.exists() and not is_study:
        raise UserError(
            f"{'Folder' if source.is_dir() else 'File'} '{source}' holds no records",
            why="records are in files that end in .parquet or .json, and in folders of results",
            todo="Give one of these, or the name of a study",
        )


def tables_in(folder: Path) -> list[Path]:
    """The tables that lie in a folder, such as those of one model of GPU in `reports/`; [] for a folder of
    results, whose cells are read, and for what is no folder."""
    return [] if not folder.is_dir() or holds_records(folder) else sorted(folder.glob("*.parquet"))


def committed_like(name: str) -> list[Path]:
    """The files of the committed records of the models that a user's name means, by their folders."""
    paths = committed()
    alike = matches(name, {path.parent.name: (path.parent.name,) for path in paths})
    return [path for path in paths if path.parent.name in alike]


def committed_of(names: Iterable[str]) -> list[Path]:
    """The files of the committed records of one model of GPU, by its driver's names or a user's name for
    it."""
    folders = {folder_of_gpu(name) for name in names}
    return [path for path in committed() if path.parent.name in folders]


def load(*sources: Path | str) -> Loaded:
    """All distinct records of the sources.

    Args:
        sources: results folders (their cells), records.parquet or records.json files.

    Raises:
        UserError: a missing file, or a file of unknown kind. A folder without results has no records.
    """
    records: dict[tuple[str, ...], Record] = {}
    problems: list[UnusableFile] = []
    environments = Environments()
    for source in map(Path, sources):
        with _no_collection():
            found, damaged, listings = _load(source)
        for record in found:
            key = (
                record.cell_id,
                record.method_version,
                record.run_id,
                record.started_at,
                record.playoff or "",
                str(record.repeat),
            )
            records.setdefault(key, record)
        problems += [*damaged, *(UnusableFile(source, why) for why in listings.problems)]
        environments.merge(listings)
    return _divided(records.values(), problems, environments)


def _divided(records: Iterable[Record], problems: list[UnusableFile], environments: Environments) -> Loaded:
    content = list(records)
    return Loaded(
        [record for record in content if is_own(record)],
        problems,
        [record for record in content if record.playoff is not None and not record.repeat],
        [record for record in content if record.repeat],
        environments,
    )


def unmerged(path: Path) -> Loaded:
    """All records of an untrusted file or folder, the same ones more than once if they are there more than
    once.

    Raises:
        UserError: as in `load`.
    """
    if path.is_dir() and not (path / "cells").is_dir():
        path /= "records.parquet"
    with _no_collection():
        content = (
            _from_parquet(path, trusted=False)
            if path.suffix == ".parquet" and path.is_file()
            else _load(path)
        )
    return _divided(*content)


@contextmanager
def _no_collection() -> Iterator[None]:
    """A context without garbage collection: records have no cycles and stay alive, so repeated collections
    only cost time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_columns(sources: Sequence[Path], columns: Sequence[str]) -> tuple[pd.DataFrame, list[UnusableFile]]:
    """These columns of the derived table of all sources, and problems.

    Rows of play-offs are included only if the column `playoff` is requested, and repeats only with `repeat`,
    so that other callers do not count a cell twice. Rows are made from records. Only committed tables, whose
    columns are known to agree with their records, are read by columns, if they have all of them.

    Args:
        sources: as in `load`.

    Raises:
        UserError: as in `load`.
    """
    import pandas as pd

    wanted = list(dict.fromkeys((*columns, *IDENTITY)))
    frames: list[pd.DataFrame] = []
    problems: list[UnusableFile] = []
    for path in sources:
        file = path / "records.parquet" if path.is_dir() and not (path / "cells").is_dir() else path
        frame = _columns_of_parquet(file, wanted) if file.suffix == ".parquet" and is_verified(file) else None
        if frame is None:
            records, damaged, _ = _load(path)
            frame = derived(records).loc[:, wanted]
            problems += damaged
        frames.append(frame)
    table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    table = table.drop_duplicates(list(IDENTITY), ignore_index=True)
    return of_grid(table, playoffs="playoff" in columns, repeats="repeat" in columns).loc[
        :, list(columns)
    ], problems


def _columns_of_parquet(path: Path, columns: list[str]) -> pd.DataFrame | None:
    """None if the file is damaged or lacks one of the columns, so that its records must be read."""
    import pandas as pd

    try:
        types = {column.name: column.type for column in COLUMNS}
        optional = {*LATER_COLUMNS, NEW_TOKENS, GPUS, DISTURBED, DETERMINISTIC}
        needed = {*columns, "seqlen"} if NEW_TOKENS in columns else set(columns)
        frame = read_columns(path, {name: types[name] for name in needed}, optional=optional).to_pandas()
        lacking = [name for name in columns if name not in frame]
        values = {
            name: "" if LATER_COLUMNS[name] == {} else LATER_COLUMNS[name]
            for name in lacking
            if name in LATER_COLUMNS
        }
        if NEW_TOKENS in lacking:
            values[NEW_TOKENS] = frame.seqlen
        for name in {DISTURBED, DETERMINISTIC}.intersection(lacking):
            values[name] = pd.Series(pd.NA, index=frame.index, dtype="boolean")
        if GPUS in lacking:  # for older records, without decoding them, which takes seconds
            values[GPUS] = [
                " ".join(dict.fromkeys(_UUID.findall(text or ""))) for text in read_texts(path, RECORD_COLUMN)
            ]
    except BadTable:
        return None
    return frame.assign(**values).loc[:, columns]


def records_file(path: Path) -> Path | None:
    """The file of records that a source means; None for a folder of results.

    Raises:
        UserError: a missing file, or a file of unknown kind.
    """
    if path.suffix in FILES:
        if not path.exists() or path.is_dir():
            raise UserError(
                f"There is no file '{path}'", todo="`longca export` writes records.parquet and records.json"
            )
        return path
    if path.is_file():
        raise UserError(
            f"'{path}' holds no records", todo="Give a study's folder of results, or a records.parquet"
        )
    if not (path / "cells").is_dir() and (path / "records.parquet").is_file():
        return path / "records.parquet"
    return None


def _load(path: Path) -> _Content:
    file = records_file(path)
    if file is not None:
        return _from_parquet(file) if file.suffix == ".parquet" else _from_json(file)
    stores = CellStore(path), PlayoffStore(path), RepeatStore(path)
    parts = [store.read_all() for store in stores]
    return _Content(
        [record for records, _ in parts for record in records],
        [problem for _, problems in parts for problem in problems],
        read_listings(path),
    )


def _from_parquet(path: Path, trusted: bool | None = None) -> _Content:
    """Records and problems of a file; `trusted` columns, by default those of committed tables, are not
    compared."""
    records: dict[int, Record] = {}
    reasons: dict[int, str] = {}
    try:
        for row, record in decoded_rows(path):
            if isinstance(record, Record):
                records[row] = record
            else:
                reasons[row] = record
        if not (is_verified(path) if trusted is None else trusted):
            reasons |= _disagreements(path, records)
        listings = read_metadata(path, ENVIRONMENTS_KEY)
    except BadTable as error:
        return _Content([], [UnusableFile(path, str(error))], Environments())
    return _Content(
        [record for row, record in records.items() if row not in reasons],
        first_problems(
            [UnusableFile(path, f"row {row + 1} {reason}") for row, reason in sorted(reasons.items())]
        ),
        Environments() if listings is None else unpacked(listings),
    )


def decoded_rows(path: Path, group: int | None = None) -> Iterator[tuple[int, Record | str]]:
    """The record of each row of a Parquet file, or of one of its row groups, or the reason why it is
    unusable. Rows are counted from 0 there. Raises BadTable."""
    decoder = Decoder()
    for row, text in enumerate(read_texts(path, RECORD_COLUMN, group)):
        try:
            yield row, decoder.decode((text or "").encode())
        except Unusable as error:
            yield row, str(error)


def _disagreements(path: Path, records: dict[int, Record]) -> dict[int, str]:
    """Rows whose columns disagree with their records, with the difference. Raises BadTable."""
    columns = {column.name: column.type for column in checked_columns()}
    table = read_columns(path, columns, optional=columns)
    return differing_rows(records, {name: table.column(name).to_pylist() for name in table.column_names})


def _from_json(path: Path) -> _Content:
    try:
        content = read_json(read_file(path, RECORDS))
    except OSError as error:
        return _Content([], [UnusableFile(path, f"cannot be read ({error.strerror})")], Environments())
    except JsonError as error:
        return _Content(
            [],
            [UnusableFile(path, f"is damaged ({f'line {error.line}' if error.line else 'it'} {error})")],
            Environments(),
        )
    entries = content.get("records") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        return _Content([], [UnusableFile(path, "is not a list of records")], Environments())
    records: list[Record] = []
    problems: list[UnusableFile] = []
    for number, entry in enumerate(entries, 1):
        try:
            records.append(decode_content(entry))
        except Unusable as error:
            problems.append(UnusableFile(path, f"row {number} {error}"))
    environments = Environments()
    environments.add(content.get(KEY, {}))
    return _Content(records, first_problems(problems), environments)


def first_problems(problems: list[UnusableFile]) -> list[UnusableFile]:
    """The first problems of a file, and one with the number of others."""
    if len(problems) <= MOST_NAMED:
        return problems
    return [
        *problems[:MOST_NAMED],
        UnusableFile(problems[0].path, f"has {len(problems) - MOST_NAMED:,} more rows that cannot be used"),
    ]
