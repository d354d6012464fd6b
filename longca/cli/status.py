"""The command `longca status`: measured, missing and damaged cells of a study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from longca.cli.options import Json, Results, StudyName, open_study, print_json, print_table
from longca.core.record import STATUSES

if TYPE_CHECKING:
    from longca.store.cells import UnusableFile


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Show what is measured, left and damaged. Exit code 1 if cells failed."""
    _, chosen, folder = open_study(study, results=results)
    found, problems = _statuses(folder)
    methods: dict[str, Counter[str]] = {}
    for cell in chosen.cells():
        methods.setdefault(cell.method, Counter())[found.get(cell.cell_id, "left")] += 1
    columns = [status for status in (*STATUSES, "left") if any(counts[status] for counts in methods.values())]
    if as_json:
        print_json({"study": chosen.name, "methods": methods, "problems": [vars(problem) for problem in problems]})
    else:
        total = Counter[str]()
        for counts in methods.values():
            total += counts
        rows = [[method, *(counts[column] for column in columns)] for method, counts in methods.items()]
        print_table(f"{chosen.name}: {total.total() - total['left']} of {total.total()} cells measured", ["", *columns],
                    [*rows, ["all", *(total[column] for column in columns)]])
        for problem in problems:
            print(f"skipped {problem}")
    if any(counts["error"] + counts["incorrect"] + counts["timeout"] for counts in methods.values()):
        raise typer.Exit(1)


def _statuses(folder: Path) -> tuple[dict[str, str], list[UnusableFile]]:
    """The status of each cell that has a record, and files and rows that could not be read."""
    from longca.store.cells import CellStore
    from longca.store.index import cell_facts
    from longca.store.load import load

    if (folder / "cells").is_dir():
        facts, problems = cell_facts(CellStore(folder))
        return {cell_id: found.status for cell_id, found in facts.items()}, problems
    loaded = load(folder)
    return {record.cell_id: record.outcome.status for record in loaded.records}, loaded.problems
