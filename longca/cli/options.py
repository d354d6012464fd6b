"""Options that several commands share, and their output as tables and JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from longca.core.config import Config, load_config
from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.core.select import Selection
from longca.core.study import STUDIES, Study, load_study


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


@dataclass(frozen=True)
class Chosen:
    """The records that a user names: their title, where they lie, and the folder that output of them belongs into."""

    title: str
    sources: list[Path]
    folder: Path


def choose_records(given: list[str] | None, results: Path | None) -> Chosen:
    """The records of a study by its name or YAML file, of a folder of results, or of one or more files of records.

    Raises:
        UserError: several are given and one of them is no file of records, or there is no such study.
    """
    names = given or []
    files = [Path(text) for text in names if text.endswith((".parquet", ".json"))]
    if len(names) > 1 and len(files) < len(names):
        raise UserError(f"'{next(text for text in names if Path(text) not in files)}' is no file of records",
                        why="take one study, or one or more files of records")
    if files:
        return Chosen(_title(files[0].stem), files, files[0].parent)
    if names and Path(names[0]).is_dir() and not (STUDIES / f"{names[0]}.yaml").exists():
        return Chosen(_title(Path(names[0]).name), [Path(names[0])], Path(names[0]))
    _, study, folder = open_study(names[0] if names else None, results=results)
    return Chosen(study.title or study.name, [folder], folder)


def _title(name: str) -> str:
    """The title of the study with this name; the name itself if there is no such study here."""
    return load_study(name).title or name if (STUDIES / f"{name}.yaml").exists() else name


def print_json(data: Any) -> None:
    import json

    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


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
