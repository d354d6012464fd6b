"""Environments of records: software listings, their comparison with images, and their summary for pages."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.store.environments.images import ImageList, image_lists, own_lists
    from longca.lab.store.environments.listings import Environments
    from longca.lab.store.environments.summary import EnvironmentSummary, summary_of
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["EnvironmentSummary", "Environments", "ImageList", "image_lists", "own_lists", "summary_of"]
