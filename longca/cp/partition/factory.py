"""The choice of a mask partition by the kinds of the mask and the sharding."""

from __future__ import annotations

from longca.cp.partition.blocks import BlockPartition
from longca.cp.partition.chunks import ChunkedPartition
from longca.cp.partition.mask_partition import MaskPartition
from longca.cp.partition.sharding import ChunkedSharding, Sharding, StripedSharding
from longca.cp.partition.stripes import StripedPartition
from longca.masks.mask import Mask


def partition_mask(mask: Mask, sharding: Sharding) -> MaskPartition:
    """Partitions a mask of S queries and S keys by a sharding of S tokens.

    Raises:
        ValueError: the mask has another number of queries or keys.
    """
    if (mask.seqlen_q, mask.seqlen_k) != (sharding.seqlen, sharding.seqlen):
        raise ValueError(f"a placement of {sharding.seqlen} tokens cannot cut {mask}")
    if mask.grid is not None:
        return BlockPartition(mask, sharding)
    if isinstance(sharding, StripedSharding):
        return StripedPartition(mask, sharding)
    assert isinstance(sharding, ChunkedSharding)
    return ChunkedPartition(mask, sharding)
