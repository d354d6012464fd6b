"""`longca report`: the page."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results, open_study


def command(
    source: Annotated[list[str] | None, typer.Argument(
        help="A study, or records.parquet files [default: the configured study]", show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path | None, typer.Option(help="The page to write", show_default=False)] = None,
) -> None:
    """Make one offline HTML page from records alone."""
    from longca.report.build import build
    from longca.store.load import load

    files = [Path(text) for text in source or [] if text.endswith(".parquet")]
    if files and len(files) == len(source or []):
        title, folder, sources = _title(files[0].stem), files[0].parent, files
    else:
        _, study, folder = open_study(source[0] if source else None, results=results)
        title, sources = study.title or study.name, [folder]
    loaded = load(*sources)
    print(build(loaded.records, loaded.problems, out or folder / "report.html", study_title=title))


def _title(name: str) -> str:
    """That of the study whose records a file of this name holds, where the study is here."""
    from longca.core.study import STUDIES, load_study

    return load_study(name).title or name if (STUDIES / f"{name}.yaml").exists() else name
