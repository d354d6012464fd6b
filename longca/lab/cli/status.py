"""The command `longca status`: measured, missing and damaged cells of a study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_json, print_table, print_text
from longca.lab.studies import STATUSES

if TYPE_CHECKING:
    from longca.lab.store import UnusableFile
    from longca.lab.store.index import CellFacts
    from longca.lab.studies import Study


KEPT = ".status.json"


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Show what is measured, left, damaged, disturbed and drifting. Exit code 1 if cells failed."""
    from longca.lab.store.text import plural

    _, chosen, folder = open_study(study, results=results)
    content, problems = _counted(chosen, folder)
    methods = {method: Counter(counts) for method, counts in content["methods"].items()}
    num_disturbed = content["disturbed"]
    num_drifting = content["drifting"]
    num_played = content["num_played_off"]
    num_playoffs = content["num_playoffs"]
    columns = [status for status in (*STATUSES, "left") if any(counts[status] for counts in methods.values())]
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
    from longca.lab.bench import FAILED

    if any(counts[status] for counts in methods.values() for status in FAILED):
        raise typer.Exit(1)


def _counted(study: Study, folder: Path) -> tuple[dict[str, Any], list[UnusableFile]]:
    """(what there is to say about a study's cells, files and rows that could not be read).

    For many cells the first is kept beside them, and counted again where the study, a cell's file, a play-off
    or the code has changed. A file that cannot be read is read again each time.
    """
    from longca.core import plugin_folders
    from longca.lab.code import source_digest
    from longca.lab.store import CellStore, PlayoffStore, kept_answer
    from longca.lab.store.index import FEWEST, files_of_cells, stamps_as_bytes

    cells = folder / "cells"
    files, strays = files_of_cells(CellStore(folder))
    if len(files) < FEWEST or strays or plugin_folders():
        return _count(study, folder)
    made: list[tuple[dict[str, Any], list[UnusableFile]]] = []

    def count() -> dict[str, Any] | None:
        made.append(_count(study, folder))
        return None if made[0][1] else made[0][0]

    code = source_digest("longca.lab.cli.status", "longca.lab.studies.study", "longca.lab.bench.run.playoffs")
    causes = (code, study.model_dump_json(), PlayoffStore(folder).digest(), *stamps_as_bytes(files))
    content = kept_answer(cells / KEPT, causes, count)
    return made[0] if made else (content, [])


def _count(study: Study, folder: Path) -> tuple[dict[str, Any], list[UnusableFile]]:
    from longca.lab.bench import count_playoffs
    from longca.lab.store import PlayoffStore

    found, problems = _facts(folder)
    methods: dict[str, Counter[str]] = {}
    num_disturbed = num_drifting = 0
    for cell in study.cells():
        facts = found.get(cell.cell_id)
        methods.setdefault(cell.method, Counter())[facts.status if facts else "left"] += 1
        num_disturbed += facts is not None and facts.num_disturbed > 0
        num_drifting += facts is not None and facts.is_drifting
    has_cells = (folder / "cells").is_dir()
    played, due = count_playoffs(study, found, PlayoffStore(folder)) if has_cells else (0, 0)
    content = {
        "methods": methods, "disturbed": num_disturbed, "drifting": num_drifting,
        "num_played_off": played, "num_playoffs": due,
    }  # fmt: skip
    return content, problems


def _facts(folder: Path) -> tuple[dict[str, CellFacts], list[UnusableFile]]:
    """Facts about each cell that has a record, and files and rows that could not be read."""
    from longca.lab.store import CellStore
    from longca.lab.store.index import CellFacts, cell_facts
    from longca.lab.store.load import load

    if (folder / "cells").is_dir():
        return cell_facts(CellStore(folder))
    loaded = load(folder)
    return {record.cell_id: CellFacts.of(record) for record in loaded.records}, loaded.problems
