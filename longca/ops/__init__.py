"""The project's own operators on a GPU. Imported only where they run."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.ops import band, fa4_mask_mod, flashmask, spin
    from longca.ops.fa2_sparse import sparse_backward, sparse_forward
    from longca.ops.merge import merge_parts
    from longca.ops.transfer import on_device
    from longca.ops.tuning import flashmask_tuning, sparse_tuning
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "band",
    "fa4_mask_mod",
    "flashmask",
    "flashmask_tuning",
    "merge_parts",
    "on_device",
    "sparse_backward",
    "sparse_forward",
    "sparse_tuning",
    "spin",
]
