"""The command `longca report`: the page of a study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results
from longca.cli.records import open_records


def command(
    source: Annotated[list[str] | None, typer.Argument(
        help="A study, or files of records (.parquet, .json) [default: the configured study]", show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path | None, typer.Option(
        help="The page to write; report.html has its figures and tables beside it", show_default=False)] = None,
) -> None:
    """Make one offline HTML page from records alone."""
    from longca.report.build import build

    opened = open_records(source or [], results)
    print(build(opened.records, opened.problems, out or opened.folder / "report.html", study_title=opened.title))
