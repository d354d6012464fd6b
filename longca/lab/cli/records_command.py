"""The commands `longca records`: whole records of a release, and checks of records before they are
contributed."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Get the records of a release; check your own.")
MOST_SHOWN = 5  # problems of one check


@app.command()
def get(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="Folder or address that has the files of the release [default: "
            "where this longca was released]",
            show_default=False,
        ),
    ] = "",
    version: Annotated[
        str,
        typer.Option(
            "--release", help="Version of the release [default: that of this longca]", show_default=False
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder that gets `reports/`")] = Path(),
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key of minisign: without a signature by it, no records are fetched",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the whole records of a release to this folder: every table with all its columns, and the other
    measured data.

    Everything is checked by its SHA-256 before it is used, no other file is replaced, and what was cut off is
    resumed.
    """
    import sys
    from functools import partial

    from longca.core import VERSION
    from longca.lab.archive import get_records
    from longca.lab.store.text import format_bytes, plural

    fetched = get_records(out, source, version or VERSION, key, partial(print, file=sys.stderr))
    if as_json:
        print_json(vars(fetched))
        return
    print(
        f"{plural(len(fetched.files), 'file')} of release {fetched.version}, "
        f"{format_bytes(fetched.num_bytes)}"
    )
    print(f"archive sha256:{fetched.sha256}")
    print(out / "reports")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="File of records (.parquet, .json), or a folder that has one")],
    as_json: Json = False,
) -> None:
    """Check records before you contribute them.

    Looks at each record, its environment, the controls of each GPU, repeated cells (A/A) and duplicates. Exit
    code 1 if any check fails.
    """
    from longca.lab.archive import check_records

    checks = check_records(file)
    if as_json:
        print_json({"file": file, "checks": [vars(check) for check in checks]})
    else:
        print_table(
            str(file),
            ["check", "state", "detail"],
            [[check.name, check.state, check.detail] for check in checks],
        )
        for check in checks:
            more = len(check.lines) - MOST_SHOWN
            for line in (*check.lines[:MOST_SHOWN], *([f"… and {more:,} more"] if more > 0 else [])):
                print(f"{check.name}: {line}")
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(1)
