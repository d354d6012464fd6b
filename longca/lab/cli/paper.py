"""The command `longca paper`: the page of the whole study."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Results, show_step
from longca.lab.cli.records import open_runs, places_of_runs

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
    from longca.lab.paper import build_paper
    from longca.lab.report import write_index
    from longca.lab.store import PAPER, note_made, records_digest

    show_step("reading the records", logged=False)
    folders = [path for path in places_of_runs(runs or [], results) if path.is_dir()]
    is_of_study = len(folders) == 1 and (out / "index.html").resolve() == (folders[0] / PAPER).resolve()
    digest = records_digest(folders[0]) if is_of_study else ""
    loaded = open_runs(runs or [], results)
    page = build_paper(
        loaded.all_records, loaded.problems, out, environments=loaded.environments, progress=show_step
    )
    show_step("")
    if is_of_study:
        note_made(folders[0], "paper", digest)
    print(page)
    if out == REPORTS / "paper":
        write_index(REPORTS)
