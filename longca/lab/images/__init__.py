"""Container images: recipes, building or pulling of each image, and checks that an image is unchanged."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.images import contents, fetch, image, obtain, recipe
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["contents", "fetch", "image", "obtain", "recipe"]
