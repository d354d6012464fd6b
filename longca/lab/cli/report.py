"""The command `longca report`: the page of a study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.lab.cli.options import Json, Results, print_filled, print_json
from longca.lab.cli.records import open_rows

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.build import Built


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
    """Make one offline HTML page from records alone. Prints its finding, the verdict of its controls, and its
    path."""
    from longca.lab.report.build import build_page
    from longca.lab.store import PAGE, note_made

    opened = open_rows(source or [], results)
    built = build_page(
        opened.loaded.table,
        opened.loaded.problems,
        out or opened.folder / "report.html",
        study_title=opened.title,
        sources=opened.files,
        environments=opened.loaded.environments,
    )
    if opened.loaded.digest and built.path.resolve() == (opened.folder / PAGE).resolve():
        note_made(opened.folder, "page", opened.loaded.digest)
    texts = ending(built)
    page = built.path
    if as_json:
        print_json(
            {
                "page": str(page),
                "title": opened.title,
                "finding": texts,
                "num_records": opened.loaded.num_own,
                "problems": [
                    {"path": str(problem.path), "reason": problem.reason}
                    for problem in opened.loaded.problems
                ],
            }
        )
    else:
        for text in texts:
            print_filled(text)
        print(page)
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def ending(built: "Built") -> list[str]:
    """(the finding, the verdict of the controls) of a page, without what there is nothing of."""
    finding = built.decision.finding if built.decision else ""
    return [text for text in (finding, controls_text(built.table)) if text]


def controls_text(table: "pd.DataFrame") -> str:
    """The verdict of the controls: the error of the timer, and the controls that failed; "" without controls.

    Args:
        table: derived, with columns `nominal_ms`, `is_control`, `status` and `time_ms_median`.
    """
    from longca.lab.store.text import plural

    controls = table[table.is_control.astype(bool)].to_dict("records")
    timed = [row for row in controls if row["nominal_ms"] > 0 and row["status"] == "ok"]
    if not controls:
        return ""
    failed = [row for row in controls if row["status"] != "ok"]
    parts = []
    if timed:
        worst = max(abs(row["time_ms_median"] / row["nominal_ms"] - 1) for row in timed)
        parts.append(f"{plural(len(timed), 'call')} of known length timed within {100 * worst:.2g} %")
    if failed:
        names = ", ".join(dict.fromkeys(f"{row['method']} {row['status']}" for row in failed))
        return f"Controls: {len(failed)} of {len(controls)} failed ({names}). {'; '.join(parts)}".strip()
    return f"Controls: all {len(controls)} passed" + (f"; {parts[0]}." if parts else ".")
