"""The masks of cells."""

from longca.lab.studies.cell import Cell
from longca.masks import Mask, MaskBuilder


def cell_mask(cell: Cell) -> Mask:
    """The mask that a cell asks for."""
    return MaskBuilder().build(cell.mask, **cell.mask_key)


def mask_name(cell: Cell) -> str:
    """A string that is equal for all cells with the same mask."""
    return cell.mask + "?" + "&".join(f"{key}={value}" for key, value in sorted(cell.mask_key.items()))
