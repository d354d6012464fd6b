"""Records that a command is given: by a study, by a folder of results, or by files."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from longca.lab.cli.options import open_study
from longca.lab.store.load import (
    COMMITTED,
    FILES,
    committed,
    holds_records,
    load,
    load_columns,
    refuse_without_records,
    tables_in,
)
from longca.lab.studies import load_study
from longca.lab.studies.checkout import studies_folder

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.store import LoadedRows, UnusableFile
    from longca.lab.store.environments import Environments
    from longca.lab.store.load import Loaded
    from longca.lab.studies import Record


class OpenedRecords(NamedTuple):
    """Records that a command was given."""

    title: str
    """of the study that they belong to"""
    folder: Path
    """where they lie: the study's results, or the first file's folder"""
    records: list[Record]
    problems: list[UnusableFile]
    """files and rows that could not be read"""
    files: list[Path]
    """files of records that were named"""
    playoffs: list[Record]
    """of play-offs of the same cells"""
    repeats: list[Record]
    """of the same cells"""
    environments: Environments
    """listings of the software that measured"""


class OpenedRows(NamedTuple):
    """The same as rows, which take a fraction of the memory."""

    title: str
    folder: Path
    files: list[Path]
    loaded: LoadedRows


def open_records(sources: Sequence[str], results: Path | None = None) -> OpenedRecords:
    """Load the records of one study, or of one or more files.

    Args:
        sources: a study's name, its YAML file or its folder of results; or files of records. None of them:
            the configured study.
        results: folder of results, where studies are asked for.

    Raises:
        UserError: there is no such study or file, or several sources are not all files.
    """
    places = _places(sources, results)
    loaded = load(*(path for _, path in places))
    gc.freeze()  # records stay as long as this process: no collection need look at them
    title, path = places[0]
    return OpenedRecords(
        title,
        path.parent if path.suffix in FILES else path,
        loaded.records,
        loaded.problems,
        [path for _, path in places if path.suffix in FILES],
        loaded.playoffs,
        loaded.repeats,
        loaded.environments,
    )


def open_rows(sources: Sequence[str], results: Path | None = None) -> OpenedRows:
    """The same records as rows."""
    from longca.lab.store import load_rows

    places = _places(sources, results)
    title, path = places[0]
    return OpenedRows(
        title,
        path.parent if path.suffix in FILES else path,
        [path for _, path in places if path.suffix in FILES],
        load_rows(*(path for _, path in places)),
    )


def _places(sources: Sequence[str], results: Path | None) -> list[tuple[str, Path]]:
    from longca.core import UserError

    alone = [text for text in sources if not text.endswith(FILES)]
    if len(sources) > 1 and alone:
        raise UserError(
            f"'{alone[0]}' is no file of records",
            why="only files go together: give one study, or one or more files of records",
        )
    return [_place(text, results) for text in sources or [None]]


def open_runs(sources: Sequence[str], results: Path | None = None) -> Loaded:
    """Load the records of any number of studies, folders of results and files of records; the committed ones
    if none is given.

    Raises:
        UserError: there is no such study or file.
    """
    return load(*places_of_runs(sources, results))


def columns_of_runs(
    sources: Sequence[str], results: Path | None, columns: Sequence[str]
) -> tuple[pd.DataFrame, list[UnusableFile]]:
    """These columns of the derived table of the same records, and what could not be read.

    Raises:
        UserError: there is no such study or file, or no record in files that cannot be used.
    """
    from longca.core import UserError

    table, problems = load_columns(places_of_runs(sources, results), columns)
    if problems and not len(table):
        raise UserError("There is no record that can be used", why=str(problems[0]))
    return table, problems


def places_of_runs(sources: Sequence[str], results: Path | None = None) -> list[Path]:
    """The places of these records, as `open_runs` takes them. Raises UserError."""
    from longca.core import UserError

    places = [
        path for text in sources for path in tables_in(Path(text)) or [_place(text, results)[1]]
    ] or committed()
    if not places:
        raise UserError(
            f"There are no records in '{COMMITTED}'",
            todo="Give a study, a folder of results, or files of records",
        )
    return places


def _place(source: str | None, results: Path | None) -> tuple[str, Path]:
    """The title of a source of records and where they lie: a file, a folder of results, or a study by its
    name or file.

    Raises:
        UserError: there is no such study; or it has no results, and this project has records of it.
    """
    from longca.core import UserError

    if source is not None and source.endswith(FILES):
        return _title(Path(source).stem), Path(source)
    if source is not None and holds_records(Path(source)):
        return _title(Path(source).name), Path(source)
    if source is not None:
        refuse_without_records(Path(source))
    _, study, folder = open_study(source, results=results)
    if not holds_records(folder) and (own := committed(study.name)):
        raise UserError(
            f"Study '{study.name}' was not measured here",
            why=f"there are no records in '{folder}'",
            todo=f"This project's own records of it are in {_from_here(own[0])}: give that file, or measure first "  # noqa: E501
            f"with `longca run {study.name}`",
        )
    return study.title or study.name, folder


def _from_here(path: Path) -> Path:
    """The path as it is written in the working folder, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _title(name: str) -> str:
    """The title of the study with this name; the name itself if there is no such study here."""
    return load_study(name).title or name if (studies_folder() / f"{name}.yaml").exists() else name
