"""The limit on masks of blocks: plans of them are made block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longca.core.errors import UserError
from longca.core.units import format_length

if TYPE_CHECKING:
    from longca.masks.mask import Mask

MOST_BLOCKS = 40_000_000  # of all head groups: 128K tokens in blocks of 64, for 8 KV heads
ALIKE_BLOCKS = 100_000  # from which on the draws of a random block mask are alike


def check_blocks(name: str, params: Mapping[str, Any], seqlen: int, num_kv_heads: int) -> None:
    """Refuses a mask of too many blocks before it is built.

    Args:
        params: of the pattern; those with blocks have `block` or `mean_block`.

    Raises:
        UserError: it would have more than MOST_BLOCKS.
    """
    block = params.get("block", params.get("mean_block"))
    if isinstance(block, int) and block > 0:
        _check(name, (-(-seqlen // block)) ** 2 * num_kv_heads, seqlen)


def check_grid(mask: Mask) -> None:
    """The same for a mask that is built already."""
    if mask.grid is not None:
        _check(mask.name or "of blocks", mask.grid.visible.size, mask.seqlen_q)


def draws_alike(mask: Mask) -> bool:
    """True for random blocks of such a number that other draws have the same time."""
    return mask.grid is not None and mask.grid.visible.size >= ALIKE_BLOCKS


def _check(name: str, num_blocks: int, seqlen: int) -> None:
    if num_blocks > MOST_BLOCKS:
        raise UserError(
            f"Mask '{name}' of {format_length(seqlen)} tokens has {num_blocks:,} blocks, and they would take hours to plan",
            why=f"at most {MOST_BLOCKS:,} can be planned, over all KV heads",
            todo="Take fewer tokens, or larger blocks such as block=1024",
        )
