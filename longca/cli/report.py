"""The command `longca report`: the page of a study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results, open_study


def command(
    source: Annotated[list[str] | None, typer.Argument(
        help="A study, or files of records (.parquet, .json) [default: the configured study]", show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path | None, typer.Option(
        help="The page to write; report.html has its figures and tables beside it", show_default=False)] = None,
) -> None:
    """Make one offline HTML page from records alone."""
    from longca.core.errors import UserError
    from longca.report.build import build
    from longca.store.load import load

    given = source or []
    files = [Path(text) for text in given if text.endswith((".parquet", ".json"))]
    if len(given) > 1 and len(files) < len(given):
        raise UserError(f"'{next(text for text in given if Path(text) not in files)}' is no file of records",
                        why="a page is of one study, or of one or more files of records")
    if files:
        title, folder, sources = _title(files[0].stem), files[0].parent, files
    else:
        _, study, folder = open_study(given[0] if given else None, results=results)
        title, sources = study.title or study.name, [folder]
    loaded = load(*sources)
    print(build(loaded.records, loaded.problems, out or folder / "report.html", study_title=title))


def _title(name: str) -> str:
    """The title of the study with this name; the name itself if there is no such study here."""
    from longca.core.study import STUDIES, load_study

    return load_study(name).title or name if (STUDIES / f"{name}.yaml").exists() else name
