"""The command `longca environment`: the software that records ran in, and whether it is that of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, Results, print_json, print_table, print_text

MOST_SHOWN = 40  # rows of a table


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Studies, folders of results, or files of records [default: the committed ones]",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Image to compare with: name in containers/, file, URL, or JSON of `longca image contents`",
            show_default=False,
        ),
    ] = None,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Say in which environments records ran.

    Exit code 1 if `--image` is given and a record ran neither in a pinned image nor in the files of this one,
    or it is not known.
    """
    from longca.core import UserError
    from longca.lab.cli.records import open_runs
    from longca.lab.images.contents import contents
    from longca.lab.store.environments import ImageList, image_lists, own_lists, summary_of

    images = image_lists(own_lists())
    if image is not None:
        try:
            images = [ImageList.of(Path(image).stem, contents(image))]
        except ValueError as error:
            raise UserError(f"'{image}' cannot be compared with", why=str(error)) from None
    loaded = open_runs(runs or [], results)
    if not loaded.records:
        raise UserError(
            "There is no record that can be used", why=str(loaded.problems[0]) if loaded.problems else ""
        )
    summary = summary_of(loaded.records, loaded.environments, images)
    differing = summary.comparison.differing if summary.comparison else ()
    if as_json:
        print_json(
            {
                "finding": summary.sentence,
                "num_records": summary.num_records,
                "ran": summary.ran,
                "images": summary.images,
                "same": summary.comparison.same if summary.comparison else (),
                "differing": differing,
                "environments": [
                    {
                        "digest": use.digest,
                        "num_records": use.num_records,
                        "modules": use.modules,
                        "compared": use.compared,
                        "installed": use.installed and use.installed.model_dump(mode="json"),
                    }
                    for use in summary.uses
                ],
                "problems": [str(problem) for problem in loaded.problems],
            }
        )
    else:
        print_text(f"{summary.sentence}.")
        rows = [
            [
                use.digest[:12],
                f"{use.num_records:,}",
                use.installed.python if use.installed else "its listing is not here",
                use.packages,
                (use.installed and use.installed.driver) or "",
                ", ".join(use.modules),
            ]
            for use in summary.uses
        ]
        if rows:
            print_table(
                f"{len(rows[:MOST_SHOWN])} of {len(rows)} environments",
                ["digest", "records", "Python", "packages", "driver", "modules without a distribution"],
                rows[:MOST_SHOWN],
            )
        if differing:
            print_table(
                f"{len(differing[:MOST_SHOWN])} of {len(differing)} that differ from the image",
                ["name"],
                [[name] for name in differing[:MOST_SHOWN]],
            )
        for problem in loaded.problems[:MOST_SHOWN]:
            print_text(f"skipped {problem}")
    if image is not None and (summary.ran["neither"] or summary.ran["unknown"]):
        raise typer.Exit(1)
