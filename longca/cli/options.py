"""Options that several commands share, and their output as tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from longca.core.config import Config, load_config
from longca.core.plugin import Registry
from longca.core.select import Selection
from longca.core.study import STUDIES, Study, load_study

if TYPE_CHECKING:
    from longca.core.record import Record
    from longca.store.cells import UnusableFile
    from longca.store.load import Loaded

COMMITTED = STUDIES.parents[1] / "reports" / "h200"  # this project's own records
FILES = (".parquet", ".json")  # files of records end so


def _studies() -> list[str]:
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def _names(kind: str) -> Any:
    return lambda: Registry(kind).names()


StudyName = Annotated[str | None, typer.Argument(help="Name in config/studies, or a YAML file [default: the configured one]",
                                                 autocompletion=_studies, show_default=False)]
Results = Annotated[Path | None, typer.Option(help="Folder of results", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
KernelFilter = Annotated[str, typer.Option("--kernel", "-k", help="Only these kernels: 'sdpa,fl*', '!naive'",
                                           autocompletion=_names("kernel"))]
StrategyFilter = Annotated[str, typer.Option("--strategy", "-c", help="Only these strategies; '!*' for kernels alone",
                                             autocompletion=_names("strategy"))]
MaskFilter = Annotated[str, typer.Option("--mask", "-m", help="Only these masks: 'causal*'", autocompletion=_names("mask"))]
DirectionFilter = Annotated[str, typer.Option("--direction", "-d", help="fwd or bwd")]
SeqlenFilter = Annotated[str, typer.Option("--seqlen", "-s", help="Only these lengths: '8K', '1K..8K'")]
WorldFilter = Annotated[str, typer.Option("--world", "-w", help="Only these numbers of ranks")]
SeedFilter = Annotated[str, typer.Option("--seed", help="Only these seeds: '0', '0..2'")]


def selection(kernel: str, strategy: str, mask: str, direction: str, seqlen: str, world: str = "", seed: str = "") -> Selection:
    return Selection(kernel=kernel, strategy=strategy, mask=mask, direction=direction, seqlen=seqlen, world=world, seed=seed)


def open_study(name: str | None, **overrides: Any) -> tuple[Config, Study, Path]:
    """Load (settings, study, the study's folder of results)."""
    config = load_config({"study": name, **overrides})
    study = load_study(config.study)
    return config, study, config.results / study.name


class OpenedRecords(NamedTuple):
    """Records that a command was given."""

    title: str
    """of the study that they belong to"""
    folder: Path
    """where they lie: the study's results, or the first file's folder"""
    records: list[Record]
    problems: list[UnusableFile]
    """files and rows that could not be read"""


def open_records(sources: Sequence[str], results: Path | None = None) -> OpenedRecords:
    """Load the records of one study, or of one or more files.

    Args:
        sources: a study's name, its YAML file or its folder of results; or files of records. None of them: the configured study.
        results: folder of results, where studies are asked for.

    Raises:
        UserError: there is no such study or file, or several sources are not all files.
    """
    from longca.core.errors import UserError
    from longca.store.load import load

    alone = [text for text in sources if not text.endswith(FILES)]
    if len(sources) > 1 and alone:
        raise UserError(f"'{alone[0]}' is no file of records",
                        why="only files go together: give one study, or one or more files of records")
    places = [_place(text, results) for text in sources or [None]]
    loaded = load(*(path for _, path in places))
    title, path = places[0]
    return OpenedRecords(title, path.parent if path.suffix in FILES else path, loaded.records, loaded.problems)


def open_runs(sources: Sequence[str], results: Path | None = None) -> Loaded:
    """Load the records of any number of studies, folders of results and files of records; the committed ones if none is given.

    Raises:
        UserError: there is no such study or file.
    """
    from longca.core.errors import UserError
    from longca.store.load import load

    places = [_place(text, results)[1] for text in sources] or sorted(COMMITTED.glob("*.parquet"))
    if not places:
        raise UserError(f"There are no records in '{COMMITTED}'", todo="Give a study, a folder of results, or files of records")
    return load(*places)


def _place(source: str | None, results: Path | None) -> tuple[str, Path]:
    """The title of a source of records and where they lie: a file, a folder of results, or a study by its name or file."""
    if source is not None and source.endswith(FILES):
        return _title(Path(source).stem), Path(source)
    if source is not None and _holds_records(Path(source)):
        return _title(Path(source).name), Path(source)
    _, study, folder = open_study(source, results=results)
    return study.title or study.name, folder


def _title(name: str) -> str:
    """The title of the study with this name; the name itself if there is no such study here."""
    return load_study(name).title or name if (STUDIES / f"{name}.yaml").exists() else name


def _holds_records(folder: Path) -> bool:
    return (folder / "cells").is_dir() or (folder / "records.parquet").is_file()


def print_json(data: Any) -> None:
    import json

    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_text(text: str, style: str = "") -> None:
    """Print a paragraph, wrapped to the terminal."""
    from rich.console import Console

    Console(markup=False, emoji=False, highlight=False).print(text, style=style or None)


def print_table(title: str, columns: list[str], rows: list[list[Any]], caption: str = "") -> None:
    """Print a table that fits the terminal: numbers on the right, text on the left, long text wrapped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)  # a name may hold brackets
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*("" if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(title, style="bold")
    console.print(table)
    if caption:
        console.print(caption, style="italic")
