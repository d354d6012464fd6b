"""Partitioning: the tokens and heads of each rank, and the mask between the queries of one rank and the keys
of another. Pure numpy."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.cp.partition.mask_partition import check_blocks, check_grid, draws_alike
    from longca.cp.partition.mesh import RANKS_PER_NODE, Mesh, head_groups
    from longca.cp.partition.sharding import contiguous, make_sharding
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "RANKS_PER_NODE",
    "Mesh",
    "check_blocks",
    "check_grid",
    "contiguous",
    "draws_alike",
    "head_groups",
    "make_sharding",
]
