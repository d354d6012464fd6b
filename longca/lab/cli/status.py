"""The command `longca status`: measured, missing and damaged cells of a study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_json, print_table, print_text
from longca.lab.studies.record import STATUSES

if TYPE_CHECKING:
    from longca.lab.store.cells import UnusableFile
    from longca.lab.store.index import CellFacts
    from longca.lab.studies.study import Study


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Show what is measured, left, damaged, disturbed and drifting. Exit code 1 if cells failed."""
    from longca.lab.store.text import plural

    _, chosen, folder = open_study(study, results=results)
    found, problems = _facts(folder)
    methods: dict[str, Counter[str]] = {}
    num_disturbed = num_drifting = 0
    for cell in chosen.cells():
        facts = found.get(cell.cell_id)
        methods.setdefault(cell.method, Counter())[facts.status if facts else "left"] += 1
        num_disturbed += facts is not None and facts.num_disturbed > 0
        num_drifting += facts is not None and facts.is_drifting
    columns = [status for status in (*STATUSES, "left") if any(counts[status] for counts in methods.values())]
    num_played, num_playoffs = _playoffs(chosen, found, folder)
    if as_json:
        print_json(
            {
                "study": chosen.name,
                "methods": methods,
                "disturbed": num_disturbed,
                "drifting": num_drifting,
                "num_playoffs": num_playoffs,
                "num_played_off": num_played,
                "problems": [vars(problem) for problem in problems],
            }
        )
    else:
        total = Counter[str]()
        for counts in methods.values():
            total += counts
        rows = [[method, *(counts[column] for column in columns)] for method, counts in methods.items()]
        print_table(
            f"{chosen.name}: {total.total() - total['left']} of {total.total()} cells measured",
            ["", *columns],
            [*rows, ["all", *(total[column] for column in columns)]],
        )
        if num_playoffs:
            print_text(f"{num_played} of {plural(num_playoffs, 'case')} played off")
        again = (study or chosen.name) + (f" --results {results}" if results else "")
        if num_disturbed:
            print_text(
                f"Others used the device while {plural(num_disturbed, 'cell')} ran. "
                f"When it is quiet: longca run {again} --retry disturbed"
            )
        if num_drifting:
            print_text(
                f"The times of {plural(num_drifting, 'cell')} drift. To measure again: longca run {again} "
                f"--retry drifting"
            )
        for problem in problems:
            print(f"skipped {problem}")
    from longca.lab.bench.run.scores import FAILED

    if any(counts[status] for counts in methods.values() for status in FAILED):
        raise typer.Exit(1)


def _playoffs(study: Study, facts: dict[str, CellFacts], folder: Path) -> tuple[int, int]:
    """(cases that are played off, cases that have a play-off) of what is measured."""
    from longca.lab.bench.run.playoffs import count_playoffs
    from longca.lab.store.beside.playoffs import PlayoffStore

    return count_playoffs(study, facts, PlayoffStore(folder)) if (folder / "cells").is_dir() else (0, 0)


def _facts(folder: Path) -> tuple[dict[str, CellFacts], list[UnusableFile]]:
    """Facts about each cell that has a record, and files and rows that could not be read."""
    from longca.lab.store.cells import CellStore
    from longca.lab.store.index import CellFacts, cell_facts
    from longca.lab.store.load import load

    if (folder / "cells").is_dir():
        return cell_facts(CellStore(folder))
    loaded = load(folder)
    return {record.cell_id: CellFacts.of(record) for record in loaded.records}, loaded.problems
