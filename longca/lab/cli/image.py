"""The commands `longca image`: container images."""

from typing import Annotated

import typer

from longca.lab.cli.options import Json, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Container images: build or pull them once, and check them.")
Wanted = Annotated[
    str | None,
    typer.Argument(
        help="Name in containers/, file, or URL with digest [default: the configured one]", show_default=False
    ),
]
Listed = Annotated[
    str,
    typer.Argument(
        help="Name in containers/, file, URL with digest, or a JSON file of `longca image contents`"
    ),
]
Digest = Annotated[str | None, typer.Option(help="What it must be: sha256:…", show_default=False)]
Key = Annotated[
    str | None,
    typer.Option(
        help="Public key (PEM) that must have signed it, unless it is built here", show_default=False
    ),
]
MOST_SHOWN = 40


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """List the images that can be built, and which are here."""
    from longca.lab.images.image import locate
    from longca.lab.images.recipe import ELSEWHERE, load_recipe, names

    rows = [
        {
            "name": recipe.name,
            "here": locate(recipe.name).file.exists(),
            "base": recipe.base.image,
            "python": recipe.python,
            "about": recipe.about,
        }
        for recipe in map(load_recipe, names())
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        print(f"No image can be built here: {ELSEWHERE}.")
    else:
        print_table(
            f"{len(rows)} images",
            list(rows[0]),
            [
                ["yes" if value is True else "no" if value is False else value for value in row.values()]
                for row in rows
            ],
        )


@app.command()
def get(image: Wanted = None, digest: Digest = None, key: Key = None) -> None:
    """Build or pull an image unless it is here, check it, and note its digest."""
    from longca.lab.images.obtain import obtain
    from longca.lab.studies import load_config

    configured, wanted = _configured(image, digest)
    print(obtain(configured, wanted, load_config({"image_key": key}).image_key))
    print(configured.file)


@app.command()
def check(image: Wanted = None, digest: Digest = None) -> None:
    """Read the whole image and compare it with the digest noted when it was obtained."""
    from longca.lab.images.image import check as checked

    configured, wanted = _configured(image, digest)
    print(checked(configured, wanted, thorough=True))


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="Name in containers/")]) -> None:
    """Fetch an image's Python packages, each by its hash, for a build without a network."""
    from longca.lab.images.fetch import fetch as fetched
    from longca.lab.images.recipe import load_recipe

    print(fetched(load_recipe(name)))


@app.command()
def contents(
    image: Wanted = None,
    short: Annotated[
        bool,
        typer.Option("--short", help="Only what records are compared with: containers/NAME/contents.json"),
    ] = False,
) -> None:
    """Print what is in an image as JSON: packages of the system and of Python, the hash of each file, the
    build id of each object."""
    from longca.lab.images.contents import comparable
    from longca.lab.images.contents import contents as listed

    whole = listed(_configured(image, None)[0].wanted)
    print_json(comparable(whole) if short else whole)


@app.command()
def sbom(image: Wanted = None) -> None:
    """Print an image's bill of materials (CycloneDX 1.5, JSON)."""
    from longca.lab.images.contents import bill_of_materials
    from longca.lab.images.contents import contents as listed

    wanted = _configured(image, None)[0].wanted
    print_json(bill_of_materials(wanted, listed(wanted)))


@app.command()
def diff(first: Listed, second: Listed, as_json: Json = False) -> None:
    """Say in which two images differ, and whether that can touch a number. Exit code 1 if it can."""
    from dataclasses import asdict

    from longca.lab.images.contents import contents as listed
    from longca.lab.images.contents import differences, finding

    before = listed(first)
    after = listed(second)
    changes = differences(before, after)
    sentence = finding(first, second, changes, len(before["files"]))
    if as_json:
        print_json({"finding": sentence, "differences": [asdict(difference) for difference in changes]})
    else:
        print(sentence)
        if changes:
            shown = [
                [
                    change.what,
                    change.name,
                    _short(change.before),
                    _short(change.after),
                    "can touch a number" if change.touches_numbers else "",
                ]
                for change in changes[:MOST_SHOWN]
            ]
            print_table(
                f"{len(shown)} of {len(changes)} differences", ["what", "name", "first", "second", ""], shown
            )
    if any(difference.touches_numbers for difference in changes):
        raise typer.Exit(1)


def _short(version: str) -> str:
    """A version, or the beginning of a hash."""
    return version[:12] if len(version) == 64 else version or "–"


def _configured(image: str | None, digest: str | None):
    from longca.core import UserError
    from longca.lab.images.image import locate
    from longca.lab.studies import load_config

    config = load_config({"image": image, "image_digest": digest})
    if not config.image:
        raise UserError(
            "No image is given", todo="Name one of `longca image list`, or set image in config/config.yaml"
        )
    return locate(config.image), config.image_digest
