"""Tile sizes of band attention's kernels: data, found by `python -m benchmarks.band.tune`; docs/band.md tells what was tried."""

from dataclasses import dataclass, replace
from enum import Enum

import torch


class Use(Enum):
    """The kernels that read lines."""

    FORWARD = "forward"
    KEYS = "keys"  # dK and dV: lines of keys
    QUERIES = "queries"  # dQ


@dataclass(frozen=True)
class Tuned:
    """How one kernel is built."""

    rows: int  # of the score matrix: a line's tile, times the query heads that share it if it is one of queries
    step: int  # its columns: a line's step, times the query heads that share it if it is one of queries
    warps: int
    stages: int  # loads under way at once
    loop: int = 1  # 0: one for each run of full steps, and one for partial ones; 1: one for all full steps; 2: one for all steps
    pack: int = 16  # query heads that share a tile, at most
    hopper: int = 0  # 1: one of `sm90.launch`, which knows the rest; 2: forward, with OVERLAP; keys, with dQ
    in_order: bool = False  # keys, with dQ: pieces take turns, so that sums repeat
    at_once: int = 0  # KV heads whose lines start together; 0: what the plan finds best


# Head dim 128: the best of the sweep on one H200, 64:8 heads, bf16, 16K tokens (geometric means over masks of all kinds: forward 486,
# keys 554, queries 583 TFLOP/s). Head dim 64 was not swept: the same tiles, whose accumulators are half as large.
# Without heads to share a tile (MHA), the same tiles hold tokens of one head.
TUNED = {
    64: {Use.FORWARD: Tuned(128, 64, 4, 3), Use.KEYS: Tuned(64, 64, 4, 2, loop=2), Use.QUERIES: Tuned(64, 64, 4, 2, loop=2)},
    128: {Use.FORWARD: Tuned(128, 64, 4, 2, loop=2), Use.KEYS: Tuned(64, 64, 4, 2, loop=2), Use.QUERIES: Tuned(64, 64, 4, 2, loop=2)},
}
# Without TMA and warp-group matmuls (sm_80 to sm_89): the most that a kernel can hold in registers. Compiled, never measured.
BEFORE_HOPPER = {Use.FORWARD: Tuned(64, 64, 8, 2, loop=2), Use.KEYS: Tuned(64, 32, 8, 2, loop=2), Use.QUERIES: Tuned(64, 32, 8, 2, loop=2)}

# For smaller blocks half of such a tile would be idle.
HOPPER_KEYS = Tuned(128, 64, 4, 3, hopper=1)
HOPPER_QUERIES = Tuned(128, 64, 4, 3, hopper=1)
HOPPER_GRADIENTS = Tuned(128, 64, 4, 3, pack=1, hopper=2)  # dQ too
# Where keys come in short blocks, a tile is any two of them.
HOPPER_FORWARD, HOPPER_SHORT_BLOCKS = Tuned(128, 128, 4, 2, hopper=2), Tuned(128, 64, 4, 2, hopper=1)


def tiles_for(head_dim: int, device: torch.device, *, block: int | None = None, block_rows: int | None = None, at_once: bool = False,
              in_order: bool = False) -> dict[Use, Tuned]:
    """
    Args:
        block: keys of a block, if the mask is made of blocks.
        block_rows: its queries, times the query heads of a KV head.
        at_once: dK's kernel makes dQ too, where there is one that can: there are then no tiles for dQ.
        in_order: of `Tuned`, for that kernel.

    Raises:
        ValueError: a head dim that has none.
    """
    if head_dim not in TUNED:
        raise ValueError(f"band attention has head dims {' and '.join(map(str, TUNED))}; this one is {head_dim}")
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if capability is not None and capability < (9, 0):
        return BEFORE_HOPPER
    tiles = dict(TUNED[head_dim])
    if capability == (9, 0) and head_dim == 128:
        short = block is not None and block % 128 != 0
        tiles[Use.FORWARD] = HOPPER_SHORT_BLOCKS if short else HOPPER_FORWARD
        if not short:
            if at_once:
                tiles[Use.KEYS] = replace(HOPPER_GRADIENTS, in_order=in_order)
                del tiles[Use.QUERIES]
            else:
                tiles[Use.KEYS] = HOPPER_KEYS
                if block_rows is None or block_rows >= HOPPER_QUERIES.rows:
                    tiles[Use.QUERIES] = HOPPER_QUERIES
    return tiles
