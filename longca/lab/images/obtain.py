"""Obtains an image: builds it from its recipe, or pulls it by digest."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from longca.core import UserError
from longca.core.secrets import bytes_without_secrets, without_secrets
from longca.lab.images.contents import bill_of_materials, contents
from longca.lab.images.fetch import fetch, reachable
from longca.lab.images.image import IMAGES, Image, check_architecture, stamp
from longca.lab.images.recipe import Recipe, load_recipe, names
from longca.lab.images.render import BOUND, EPOCH, recipe_digest
from longca.lab.store import replace_file

MACHINE = "x86_64"  # of the wheels in the locks
HUB = {"docker.io": "registry-1.docker.io"}  # registry names that are not hosts
LAST_LINES = 15
# the default takes minutes longer and saves a few percent
QUICK = {"APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 3", "SOURCE_DATE_EPOCH": str(EPOCH)}


def obtain(image: Image, digest: str = "", key: str = "", announce: Callable[[str], object] = print) -> str:
    """Obtain and stamp the image, and return its digest. An existing image is checked and kept. Its bill of
    materials is written next to it.

    Args:
        digest: the required digest; any if empty.
        key: file of the public key of the required signature, unless it is built here; no signature is
            required if empty.
        announce: receives a line before each long step.

    Raises:
        UserError: it can neither be built nor pulled here, it is not the requested image, or it is not signed
            with that key.
    """
    recipe = load_recipe(image.wanted) if image.wanted in names() else None
    if image.file.exists():
        if (
            recipe
            and image.recipe.is_file()
            and image.recipe.read_text(encoding="utf-8").strip() != recipe_digest(recipe)
        ):
            raise UserError(
                f"Image '{image.file}' was built from another recipe than containers/{recipe.name} is now",
                todo=f"Remove it and {image.stamp.name} to build it anew, or name the file itself to keep it",
            )
    elif recipe:
        _build(recipe, image, announce)
        replace_file(image.recipe, f"{recipe_digest(recipe)}\n".encode())
    elif "://" in image.wanted:
        announce(f"pulling {without_secrets(image.wanted)}")
        _into_place(image, [_apptainer(), "pull"], image.wanted, key)
    if image.file.is_file():
        check_architecture(image)
        if key and recipe is None:
            _check_signature(image.wanted, image.file, key)
    actual = stamp(image, digest)
    _note_bill(image)
    return actual


def definition(recipe: Recipe) -> Path:
    """The definition file that can be built here: from the registry, otherwise from Debian's packages. Raises
    UserError."""
    registry = recipe.base.image.partition("/")[0]
    if reachable(f"https://{HUB.get(registry, registry)}/v2/"):
        return recipe.folder / "apptainer.def"
    if recipe.debian is None:
        raise UserError(
            f"Image '{recipe.name}' cannot be built here",
            why=f"its base comes from {registry}, which cannot be reached",
            todo=f"Build it where it can, and copy it to {IMAGES.name}/{recipe.name}.sif",
        )
    return recipe.folder / "apptainer-debian.def"


def _build(recipe: Recipe, image: Image, announce: Callable[[str], object]) -> None:
    apptainer = _apptainer()
    source = definition(recipe)
    if platform.machine() != MACHINE:
        raise UserError(
            f"Image '{recipe.name}' cannot be built here",
            why=f"its packages are for {MACHINE}, this machine is {platform.machine()}",
        )
    _check_space(recipe)
    announce(
        f"building {image.file.name} of {source.relative_to(IMAGES.parent)}; {image.log} tells how far it is"
    )
    fetch(recipe)
    binds = [f"--bind={IMAGES.parent / folder}:{target}" for folder, target in BOUND.items()]
    for folder in BOUND:
        (IMAGES.parent / folder).mkdir(parents=True, exist_ok=True)
    _into_place(image, [apptainer, "build", "--fakeroot", *binds], str(source.relative_to(IMAGES.parent)))


def _check_space(recipe: Recipe) -> None:
    """Raises UserError if there is not enough disk space for the build and for the image."""
    for folder in (Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir()), IMAGES.parent):
        free = shutil.disk_usage(folder).free / 1e9
        if free < recipe.disk_gb:
            raise UserError(
                f"There is not enough space to build image '{recipe.name}'",
                why=f"{folder} has {free:.1f} GB, and it takes up to {recipe.disk_gb:g} GB",
                todo="Free some, or set APPTAINER_TMPDIR to a folder that has it",
            )


def _check_signature(name: str, file: Path, key: str) -> None:
    """Raises UserError unless the whole image is signed by that key (`apptainer sign --key` does this)."""
    if not Path(key).is_file():
        raise UserError(
            f"There is no key '{key}'",
            why="image_key names the public key whose signature an image must carry",
            todo="Give the PEM file of whoever signs your images, or none",
        )
    done = subprocess.run(
        [_apptainer(), "verify", "--all", f"--key={key}", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (
            (done.stderr.strip() or "apptainer does not say why")
            .splitlines()[-1]
            .removeprefix("FATAL:")
            .strip()
        )
        raise UserError(
            f"Image '{name}' is not used",
            why=f"it is not signed with '{key}': {last}",
            todo="Get a signed one (oras:// and library:// keep signatures, docker:// has none), or correct "
            "image_key",
        )


def _into_place(image: Image, command: list[str], source: str, key: str = "") -> None:
    """Make the image under a temporary name, then rename it, so that an interrupted build leaves no image."""
    image.file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = image.file.with_name(f".{os.getpid()}.{image.file.name}")
    try:
        with image.log.open("wb") as log:
            done = subprocess.run(
                [*command, str(unfinished), source],
                cwd=IMAGES.parent,
                stdout=log,
                stderr=log,
                check=False,
                env={**QUICK, **os.environ},
            )
        image.log.write_bytes(bytes_without_secrets(image.log.read_bytes()))
        if done.returncode:
            said = image.log.read_text(encoding="utf-8", errors="replace")
            print("\n".join(said.splitlines()[-LAST_LINES:]), file=sys.stderr)
            if "fakeroot" in said and os.geteuid() != 0:
                raise UserError(
                    f"Image '{image.wanted}' could not be made",
                    why="this user may not build with --fakeroot, see above",
                    todo="Ask for lines in /etc/subuid and /etc/subgid, or build it elsewhere and copy it to "
                    "images/",
                )
            raise UserError(
                f"Image '{image.wanted}' could not be made",
                why=f"`{' '.join(command[1:])} {source}` failed, see above and {image.log}",
            )
        if key:
            _check_signature(image.wanted, unfinished, key)
        unfinished.replace(image.file)
        image.bill.unlink(missing_ok=True)  # of a previous image
    finally:
        unfinished.unlink(missing_ok=True)


def _note_bill(image: Image) -> None:
    """Write the image's bill of materials, unless it exists. An image that was not built from a recipe may
    lack the list for it."""
    if image.bill.is_file():
        return
    try:
        listed = contents(image.wanted)
    except UserError:
        return
    replace_file(image.bill, f"{json.dumps(bill_of_materials(image.wanted, listed), indent=1)}\n".encode())


def _apptainer() -> str:
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        raise UserError(
            "There is no apptainer on this machine",
            todo="Install it, load its module, or give an image that exists already",
        )
    return program
