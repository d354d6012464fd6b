"""The command `longca status`: measured, missing and damaged cells of a study."""

from collections import Counter

import typer

from longca.cli.options import Json, Results, StudyName, open_study, print_json, print_table
from longca.core.record import STATUSES


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Show what is measured, left and damaged. Exit code 1 if cells failed."""
    from longca.store.load import load

    _, chosen, folder = open_study(study, results=results)
    loaded = load(folder)
    records = {record.cell_id: record for record in loaded.records}
    methods: dict[str, Counter[str]] = {}
    for cell in chosen.cells():
        record = records.get(cell.cell_id)
        methods.setdefault(cell.method, Counter())[record.outcome.status if record else "left"] += 1
    columns = [status for status in (*STATUSES, "left") if any(counts[status] for counts in methods.values())]
    if as_json:
        print_json({"study": chosen.name, "methods": methods, "problems": [vars(problem) for problem in loaded.problems]})
    else:
        total = Counter[str]()
        for counts in methods.values():
            total += counts
        rows = [[method, *(counts[column] for column in columns)] for method, counts in methods.items()]
        print_table(f"{chosen.name}: {total.total() - total['left']} of {total.total()} cells measured", ["", *columns],
                    [*rows, ["all", *(total[column] for column in columns)]])
        for problem in loaded.problems:
            print(f"skipped {problem}")
    if any(counts["error"] + counts["incorrect"] + counts["timeout"] for counts in methods.values()):
        raise typer.Exit(1)
