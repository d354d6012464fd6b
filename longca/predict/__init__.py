"""Models of time, fitted on records: kernels from their tiles, messages from their bytes. Never imports
torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.predict import fit, fitted, tile_statistics
    from longca.predict.kernel import (
        Interval,
        KernelModel,
        amounts,
        clock_slowdown,
        covers_all,
        even_idle,
        form_labels,
        heads_of_item,
        items_of,
        part_amounts,
        part_kind,
        ran_earlier,
        way_of,
        ways_of_parts,
        widest,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "Interval",
    "KernelModel",
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
