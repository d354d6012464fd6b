"""The command `longca paper`: the page of the whole study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results, open_runs


def command(
    runs: Annotated[list[str] | None, typer.Argument(
        help="Studies, folders of results, or files of records [default: the committed ones]", show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path, typer.Option(help="The folder to write index.html and its data to")] = Path("reports/paper"),
) -> None:
    """Make the study's report, with every figure, table and verdict, from records alone. It needs no GPU."""
    from longca.report.paper.build import build_paper

    loaded = open_runs(runs or [], results)
    print(build_paper(loaded.records, loaded.problems, out))
