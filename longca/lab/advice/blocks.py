"""The limit on masks of blocks: plans of them are made block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longca.core import UserError, format_length

if TYPE_CHECKING:
    from longca.masks import Mask

MOST_BLOCKS = 40_000_000  # of all head groups, on several GPUs: 128K tokens in blocks of 64, for 8 KV heads
MOST_BLOCKS_ALONE = 150_000_000  # on one GPU, where nothing is planned: 256K tokens of the same
ALIKE_BLOCKS = 100_000  # from which on the draws of a random block mask are alike


def check_blocks(name: str, params: Mapping[str, Any], seqlen: int, num_kv_heads: int, gpus: int) -> None:
    """Refuses a mask of too many blocks before it is built.

    Args:
        params: of the pattern; those with blocks have `block` or `mean_block`.

    Raises:
        UserError: it would have more than can be counted in a minute or so.
    """
    block = params.get("block", params.get("mean_block"))
    if isinstance(block, int) and block > 0:
        _check(name, (-(-seqlen // block)) ** 2 * num_kv_heads, seqlen, gpus)


def check_grid(mask: Mask, gpus: int) -> None:
    """The same for a mask that is built already."""
    if mask.grid is not None:
        _check(mask.name or "of blocks", mask.grid.visible.size, mask.seqlen_q, gpus)


def draws_alike(mask: Mask) -> bool:
    """True for random blocks of such a number that other draws have the same time."""
    return mask.grid is not None and mask.grid.visible.size >= ALIKE_BLOCKS


def _check(name: str, num_blocks: int, seqlen: int, gpus: int) -> None:
    most = MOST_BLOCKS if gpus > 1 else MOST_BLOCKS_ALONE
    if num_blocks > most:
        raise UserError(
            f"Mask '{name}' of {format_length(seqlen)} tokens has {num_blocks:,} blocks, too many to predict",
            why=(
                f"{'plans on several GPUs are' if gpus > 1 else 'tiles are'} counted block by block, at most "
                f"{most:,}"
            ),
            todo="Take fewer tokens, or larger blocks such as block=1024",
        )
