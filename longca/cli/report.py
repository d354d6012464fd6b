"""The command `longca report`: the page of a study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Results, choose_records


def command(
    source: Annotated[list[str] | None, typer.Argument(
        help="A study, a folder of results, or files of records (.parquet, .json) [default: the configured study]",
        show_default=False)] = None,
    results: Results = None,
    out: Annotated[Path | None, typer.Option(
        help="The page to write; report.html has its figures and tables beside it", show_default=False)] = None,
) -> None:
    """Make one offline HTML page from records alone."""
    from longca.report.build import build
    from longca.store.load import load

    chosen = choose_records(source, results)
    loaded = load(*chosen.sources)
    print(build(loaded.records, loaded.problems, out or chosen.folder / "report.html", study_title=chosen.title))
