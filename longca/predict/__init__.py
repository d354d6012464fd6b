"""Models of time, fitted on records: kernels from their tiles, messages from their bytes. Never imports
torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.predict import fit, fitted
    from longca.predict.earlier import ran_earlier
    from longca.predict.fitted import Interval, KernelModel, clock_slowdown, form_labels, part_kind, widest
    from longca.predict.kernel import (
        TileShape,
        TileStatistics,
        amounts,
        covers_all,
        even_idle,
        heads_of_item,
        items_of,
        part_amounts,
        tile_statistics,
        way_of,
        ways_of_parts,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "Interval",
    "KernelModel",
    "TileShape",
    "TileStatistics",
    "amounts",
    "clock_slowdown",
    "covers_all",
    "even_idle",
    "fit",
    "fitted",
    "form_labels",
    "heads_of_item",
    "items_of",
    "part_amounts",
    "part_kind",
    "ran_earlier",
    "tile_statistics",
    "way_of",
    "ways_of_parts",
    "widest",
]
