"""The command `longca paper`: the page of the whole study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Results
from longca.lab.cli.records import open_runs

REPORTS = Path("reports")  # the project's own pages, which an index names


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Studies, folders of results, or files of records [default: the committed ones]",
            show_default=False,
        ),
    ] = None,
    results: Results = None,
    out: Annotated[Path, typer.Option(help="The folder to write index.html and its data to")] = REPORTS
    / "paper",
) -> None:
    """Make the study's page: every figure, table and verdict.

    It is made from records alone and needs no GPU.
    """
    from longca.lab.paper.build import build_paper
    from longca.lab.report.index import write_index

    loaded = open_runs(runs or [], results)
    print(build_paper(loaded.all_records, loaded.problems, out, environments=loaded.environments))
    if out == REPORTS / "paper":
        write_index(REPORTS)
