"""Facts in records other than measurements: sampled lengths, and listings of software."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.studies.facts.inventory import (
        Distribution,
        Installation,
        Listing,
        LoadedSoftware,
        LooseModule,
        RankEnvironment,
        SharedObject,
        listing_content,
        listing_digest,
        read_listing,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "Distribution",
    "Installation",
    "Listing",
    "LoadedSoftware",
    "LooseModule",
    "RankEnvironment",
    "SharedObject",
    "listing_content",
    "listing_digest",
    "read_listing",
]
