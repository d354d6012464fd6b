"""The command `longca export`: the records as one table."""

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_filled, print_json


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Write a study's records as records.parquet, .csv and .json."""

    from longca.core import UserError
    from longca.lab.store import load_rows, note_made
    from longca.lab.store.export import export
    from longca.lab.store.text import plural

    _, _, folder = open_study(study, results=results)
    loaded = load_rows(folder)
    if not loaded.num_own:
        raise UserError(
            f"There are no records in '{folder}'",
            why=f"{plural(len(loaded.problems), 'file')} could not be read, first {loaded.problems[0]}"
            if loaded.problems
            else "",
            todo="" if loaded.problems else "Measure first with `longca run`",
        )
    paths = export(loaded.table, folder, loaded.environments)
    note_made(folder, "tables", loaded.digest)
    if as_json:
        print_json(
            {
                "files": paths,
                "num_records": loaded.num_own,
                "num_of_playoffs": loaded.num_of_playoffs,
                "num_repeats": loaded.num_repeats,
                "problems": [{"file": problem.path, "reason": problem.reason} for problem in loaded.problems],
            }
        )
        return
    for problem in loaded.problems:
        print_filled(f"skipped {problem}")
    counts = [
        f"{loaded.num_own} records",
        *([f"{loaded.num_of_playoffs} of play-offs"] if loaded.num_of_playoffs else []),
        *([plural(loaded.num_repeats, "repeat")] if loaded.num_repeats else []),
    ]
    print_filled(f"{', '.join(counts)} → " + ", ".join(str(path) for path in paths))
