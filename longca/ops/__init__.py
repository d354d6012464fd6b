"""The project's own operators. Those on a GPU are imported only where they run."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.ops import band, fa4_mask_mod, flashmask, spin
    from longca.ops.band.merge import merge_parts
    from longca.ops.fa2_sparse import sparse_backward, sparse_forward
    from longca.ops.sinks import join_sinks, sinks_gradient, sinks_gradient_op, unfit_sinks
    from longca.ops.transfer import on_device
    from longca.ops.transforms import refuse_transforms
    from longca.ops.tuning import flashmask_tuning, sparse_tuning
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "band",
    "fa4_mask_mod",
    "flashmask",
    "flashmask_tuning",
    "join_sinks",
    "merge_parts",
    "on_device",
    "refuse_transforms",
    "sinks_gradient",
    "sinks_gradient_op",
    "sparse_backward",
    "sparse_forward",
    "sparse_tuning",
    "spin",
    "unfit_sinks",
]
