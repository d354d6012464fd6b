"""The command `longca clean`: removes what was made from records, and on demand the records."""

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_json, print_table

RECORDS = (
    "cells",
    "controls",
    "playoffs",
    "repeats",
    "environments",
    "records.parquet",
    "records.json",
    "records.csv",
)
MADE = {
    "logs": "what processes printed",
    "report.html": "the page",
    "figures": "its figures",
    "paper": "the page of the whole study",
    "shards": "what the workflow has finished",
    "masks.json": "masks' digests",
    "corpora.json": "drawn documents",
}


def command(
    study: StudyName = None,
    results: Results = None,
    records: Annotated[
        bool, typer.Option("--records", help="Remove the records, too: they must then be measured again")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: Json = False,
) -> None:
    """Remove logs, pages and tables of a study. Says what, and asks.

    Records stay unless `--records` is given. Exit code 1 if the answer is no. Without a terminal it needs
    `--yes`.
    """
    from longca.core import UserError
    from longca.lab.store import lock_folder
    from longca.lab.store.text import format_bytes

    _, chosen, folder = open_study(study, results=results)
    kept = [] if records else _there(folder, RECORDS)
    sizes = {
        path: _size(path)
        for path in (*_there(folder, tuple(MADE)), *(_there(folder, RECORDS) if records else ()))
    }
    total = format_bytes(sum(sizes.values()))
    if not as_json and sizes:
        print_table(
            f"{chosen.name}: {total} to remove in {folder}",
            ["what", "size", "holds"],
            [[path.name, format_bytes(size), MADE.get(path.name, "records")] for path, size in sizes.items()],
        )
    if not as_json:
        print(
            f"Records stay: {', '.join(path.name for path in kept)}."
            if kept
            else ""
            if sizes
            else f"Nothing to remove in '{folder}'."
        )
    if sizes and not yes:
        if as_json:
            print_json(
                {
                    "folder": str(folder),
                    "would_remove": [str(path) for path in sizes],
                    "num_bytes": sum(sizes.values()),
                }
            )
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise UserError(
                "Nothing is removed",
                why="there is no terminal to ask at",
                todo="Give `--yes` to remove without a question",
            )
        if not typer.confirm("Remove them?"):
            raise typer.Exit(1)
    if sizes:
        with lock_folder(folder):
            for path in sizes:
                _remove(path)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "removed": [str(path) for path in sizes],
                "num_bytes": sum(sizes.values()),
            }
        )
    elif sizes:
        print(f"Removed {total}")


def _there(folder: Path, names: tuple[str, ...]) -> list[Path]:
    return [folder / name for name in names if (folder / name).exists()]


def _size(path: Path) -> int:
    """Bytes of a file or of a folder's files. Files that another process removes meanwhile count as 0
    bytes."""
    size = 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(path.parent, [], [path.name])]:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = Path(folder, name).lstat()
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that it holds. Raises UserError where that is forbidden."""
    import shutil

    from longca.core import UserError

    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise UserError(f"Cannot remove '{path}'", why=error.strerror or str(error)) from error
