"""Band attention: exact attention for any list of bands and any block-sparse mask, forward and backward."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.ops.band.api import band_attention, band_backward, band_backward_onto, band_forward
    from longca.ops.band.builds import CallForm, builds_of, compile_builds
    from longca.ops.band.checks import unusable
    from longca.ops.band.plan import BandPlan, bytes_of, of_rows, plan_band_attention
    from longca.ops.band.replay.launcher import unknown_launchers
    from longca.ops.band.tables.backward_rule import AddOrder, orders_of_parts
    from longca.ops.band.tables.backward_way import backward_us, is_one_pass
    from longca.ops.band.versions import unusable_triton
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "AddOrder",
    "BandPlan",
    "CallForm",
    "backward_us",
    "band_attention",
    "band_backward",
    "band_backward_onto",
    "band_forward",
    "builds_of",
    "bytes_of",
    "compile_builds",
    "is_one_pass",
    "of_rows",
    "orders_of_parts",
    "plan_band_attention",
    "unknown_launchers",
    "unusable",
    "unusable_triton",
]
