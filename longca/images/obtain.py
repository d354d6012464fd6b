"""Obtaining an image once: building it from its recipe, or pulling it by digest."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from longca.core.errors import UserError
from longca.images.fetch import fetch, reachable
from longca.images.image import IMAGES, Image, stamp
from longca.images.recipe import Recipe, load_recipe, names
from longca.images.render import BOUND, EPOCH

HUB = {"docker.io": "registry-1.docker.io"}  # names that are no hosts
LAST_LINES = 15
QUICK = {"APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 3",  # the default takes minutes longer and saves some percent
         "SOURCE_DATE_EPOCH": str(EPOCH)}


def obtain(image: Image, digest: str = "", announce: Callable[[str], object] = print) -> str:
    """Obtain and stamp the image, and give its digest. An image that is there is checked and kept.

    Args:
        digest: what it must be; as it comes if empty.
        announce: gets a line before a step that takes long.

    Raises:
        UserError: it can neither be built nor pulled here, or it is another image than asked for.
    """
    if not image.file.exists():
        if image.wanted in names():
            _build(load_recipe(image.wanted), image, announce)
        elif "://" in image.wanted:
            announce(f"pulling {image.wanted}")
            _into_place(image, [_apptainer(), "pull"], image.wanted)
    return stamp(image, digest)


def definition(recipe: Recipe) -> Path:
    """The definition file that can be built here: from the registry, otherwise from Debian's packages. Raises UserError."""
    registry = recipe.base.image.partition("/")[0]
    if reachable(f"https://{HUB.get(registry, registry)}/v2/"):
        return recipe.folder / "apptainer.def"
    if recipe.debian is None:
        raise UserError(f"Image '{recipe.name}' cannot be built here", why=f"its base comes from {registry}, which cannot be reached",
                        todo=f"Build it where it can, and copy it to {IMAGES.name}/{recipe.name}.sif")
    return recipe.folder / "apptainer-debian.def"


def _build(recipe: Recipe, image: Image, announce: Callable[[str], object]) -> None:
    apptainer, source = _apptainer(), definition(recipe)
    announce(f"building {image.file.name} of {source.relative_to(IMAGES.parent)}")
    fetch(recipe)
    binds = [f"--bind={IMAGES.parent / folder}:{target}" for folder, target in BOUND.items()]
    for folder in BOUND:
        (IMAGES.parent / folder).mkdir(parents=True, exist_ok=True)
    _into_place(image, [apptainer, "build", "--fakeroot", *binds], str(source.relative_to(IMAGES.parent)))


def _into_place(image: Image, command: list[str], source: str) -> None:
    """Make the image under another name, then move it into place: a build that was stopped leaves no image."""
    image.file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = image.file.with_name(f".{os.getpid()}.{image.file.name}")
    try:
        done = subprocess.run([*command, str(unfinished), source], cwd=IMAGES.parent, capture_output=True, text=True, check=False,
                              env={**QUICK, **os.environ})
        if done.returncode:
            print("\n".join((done.stdout + done.stderr).splitlines()[-LAST_LINES:]), file=sys.stderr)
            raise UserError(f"Image '{image.wanted}' could not be made", why=f"`{' '.join(command[1:])} {source}` failed, see above")
        unfinished.replace(image.file)
    finally:
        unfinished.unlink(missing_ok=True)


def _apptainer() -> str:
    found = shutil.which("apptainer") or shutil.which("singularity")
    if found is None:
        raise UserError("There is no apptainer on this machine", todo="Install it, load its module, or give an image that exists already")
    return found
