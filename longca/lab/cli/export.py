"""The command `longca export`: the records as one table."""

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_filled, print_json


def command(study: StudyName = None, results: Results = None, as_json: Json = False) -> None:
    """Write a study's records as records.parquet, .csv and .json."""
    import gc

    from longca.core import UserError
    from longca.lab.store.export import export
    from longca.lab.store.load import load
    from longca.lab.store.text import plural

    _, _, folder = open_study(study, results=results)
    loaded = load(folder)
    gc.freeze()  # records stay as long as this process
    if not loaded.records:
        raise UserError(f"There are no records in '{folder}'", todo="Measure first with `longca run`")
    paths = export(loaded.all_records, folder, loaded.environments)
    if as_json:
        print_json(
            {
                "files": paths,
                "num_records": len(loaded.records),
                "num_of_playoffs": len(loaded.playoffs),
                "num_repeats": len(loaded.repeats),
                "problems": [{"file": problem.path, "reason": problem.reason} for problem in loaded.problems],
            }
        )
        return
    for problem in loaded.problems:
        print_filled(f"skipped {problem}")
    counts = [
        f"{len(loaded.records)} records",
        *([f"{len(loaded.playoffs)} of play-offs"] if loaded.playoffs else []),
        *([plural(len(loaded.repeats), "repeat")] if loaded.repeats else []),
    ]
    print_filled(f"{', '.join(counts)} → " + ", ".join(str(path) for path in paths))
