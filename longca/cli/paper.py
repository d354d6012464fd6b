"""The command `longca paper`: the page of the whole study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results


def command(
    runs: Annotated[list[str] | None, typer.Argument(
        help="Studies, folders of results, or files of records [default: the committed ones, reports/h200]", show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path, typer.Option(help="The folder to write index.html and its data to")] = Path("reports/paper"),
) -> None:
    """Make the study's report, with every figure, table and verdict, from records alone. It needs no GPU."""
    from longca.cli.options import sources_of
    from longca.report.paper.build import build_paper
    from longca.store.load import load

    sources = sources_of(runs, results)
    loaded = load(*sources)
    print(build_paper(loaded.records, loaded.problems, out, sources=[source.name for source in sources]))
