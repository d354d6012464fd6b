"""The command `longca verify`: checks the files of a bundle and makes its page again from its records."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import Json, print_json, print_table


def command(
    bundle: Annotated[Path, typer.Argument(help="A bundle of `longca archive`, packed or unpacked")],
    as_json: Json = False,
) -> None:
    """Check such a file: every hash, every record, its page.

    The page is made again and compared. Runs nothing of the bundle. Exit code 1 if anything differs.
    """
    from longca.archive.packing import opened
    from longca.archive.verify import SHOWN, verify

    with opened(bundle) as folder:
        checks = verify(folder)
    if as_json:
        print_json([vars(check) for check in checks])
    else:
        print_table(str(bundle), ["check", "state", "detail"],
                    [[check.name, "ok" if check.passed else "differs", check.detail] for check in checks])
        for check in checks:
            more = len(check.differences) - SHOWN
            for line in (*check.differences[:SHOWN], *([f"… and {more} more"] if more > 0 else [])):
                print(f"{check.name}: {line}")
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
