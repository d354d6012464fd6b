"""The command `longca report`: the page of a study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, Results, print_json
from longca.lab.cli.records import open_records


def command(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study, or files of records (.parquet, .json) [default: the configured study]",
            show_default=False,
        ),
    ] = None,
    results: Results = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; report.html has its figures and tables beside it", show_default=False
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser")] = False,
    as_json: Json = False,
) -> None:
    """Make one offline HTML page from records alone."""
    from longca.lab.report.build import build

    opened = open_records(source or [], results)
    page = build(
        [*opened.records, *opened.playoffs, *opened.repeats],
        opened.problems,
        out or opened.folder / "report.html",
        study_title=opened.title,
        sources=opened.files,
        environments=opened.environments,
    )
    if as_json:
        print_json(
            {
                "page": str(page),
                "title": opened.title,
                "num_records": len(opened.records),
                "problems": [
                    {"path": str(problem.path), "reason": problem.reason} for problem in opened.problems
                ],
            }
        )
    else:
        print(page)
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
