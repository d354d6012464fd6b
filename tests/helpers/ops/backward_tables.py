"""Masks and rows for tests of band attention's backward tables."""

from longca.core.plugin import Registry
from longca.masks import Mask, build_mask
from longca.ops.band.tables.tile_rows import TileRows


def mask_of(name: str, seqlen: int) -> Mask:
    corpus = {"corpus": "prolong64k"} if Registry("mask").load(name).uses_documents else {}
    return build_mask(name, seqlen=seqlen, **corpus)


def rows_of(mask: Mask) -> TileRows:
    return TileRows.of(mask.groups[0], mask.seqlen_q, mask.seqlen_k)
