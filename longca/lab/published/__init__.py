"""Rates of attention that others published, as data with their sources, and their loader."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.published.load import PublishedRate, load_published, load_sources
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["PublishedRate", "load_published", "load_sources"]
