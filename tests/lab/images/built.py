"""Images for tests that work in them."""

import shutil

from longca.core.errors import UserError
from longca.lab.images.image import Image, locate
from longca.lab.images.obtain import obtain
from tests.support import cannot


def built(name: str) -> tuple[Image, str]:
    """The image and its digest, built unless it is there. Skips the test where it cannot be, or fails it;
    `cannot` says when."""
    image = locate(name)
    if shutil.which("apptainer") is None:
        cannot("images", "there is no apptainer on this machine")
    try:
        return image, obtain(image)
    except UserError as error:
        if image.file.exists():
            raise
        cannot("images", f"image {name} cannot be made here: {error}")
