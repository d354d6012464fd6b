"""Measures masks and their lowerings at 512K tokens: milliseconds (best of three, after one) and megabytes of
each. No GPU is needed.

python benchmarks/kernels/masks_512k.py [tokens] [pattern …]
"""

import sys
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from longca.core import Registry, format_length, parse_length
from longca.lowering import attn_slices, block_lists, col_tiles, flashmask_columns, row_tiles
from longca.lowering.dense import col_intervals, row_intervals
from longca.lowering.flex import block_mask, mask_mod
from longca.lowering.tiles import Csr, Tiles
from longca.lowering.varlen import varlen
from longca.masks import Mask, build_mask

BLOCK = 128
DYNAMIC: dict[str, dict[str, Any]] = {
    "block_sparse_uniform": {"block": BLOCK, "density": 0.1},
    "block_sparse_variable": {"mean_block": BLOCK, "density": 0.1},
}
LOWERINGS: dict[str, Callable[[Mask], object]] = {
    "row intervals": row_intervals,
    "col intervals": col_intervals,
    "FlashMask": flashmask_columns,
    "AttnSlice": attn_slices,
    "varlen": varlen,
    "block lists": block_lists,
    "row tiles": lambda mask: row_tiles(mask, BLOCK, BLOCK),
    "col tiles": lambda mask: col_tiles(mask, BLOCK, BLOCK),
    "row CSR": lambda mask: expanded(row_tiles(mask, BLOCK, BLOCK)),
    "mask_mod": lambda mask: mask_mod(mask, "cpu"),
    "BlockMask": lambda mask: block_mask(mask, "cpu"),
}
FOR_BANDS = {
    "row intervals",
    "col intervals",
    "FlashMask",
    "AttnSlice",
}  # a block-sparse row has hundreds of intervals


def expanded(tiles: Tiles) -> tuple[Csr, Csr]:
    return tiles.full, tiles.partial


def num_bytes(value: Any) -> int:
    """Returns the bytes of all arrays and tensors in a result; those that a closure captured included."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Mask):
        parts = (
            value.groups
            if value.grid is None
            else (value.grid.visible, value.grid.q_bounds, value.grid.k_bounds)
        )
        return num_bytes(list(parts))
    if isinstance(value, (list, tuple)):
        return sum(num_bytes(part) for part in value)
    if is_dataclass(value):
        return sum(num_bytes(getattr(value, field.name)) for field in fields(value))
    if getattr(value, "__closure__", None):
        return sum(num_bytes(cell.cell_contents) for cell in value.__closure__)
    if hasattr(value, "as_tuple"):  # BlockMask
        return num_bytes(list(value.as_tuple()))
    return 0


def measured(call: Callable[[], object]) -> str:
    """Returns `ms · MB`, or a dash where the mask has no such form."""
    try:
        result = call()
    except ValueError:
        return "–"
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return f"{min(seconds) * 1e3:.3g} · {num_bytes(result) / 1e6:.3g}"


def main(seqlen: int, names: list[str]) -> None:
    table = Table(title=f"{format_length(seqlen)} tokens: ms · MB, tiles and blocks of {BLOCK}")
    for heading in ("mask", "bands", "build", *LOWERINGS):
        table.add_column(heading, justify="left" if heading == "mask" else "right", no_wrap=True)
    for name in names or Registry("mask").names():
        params = DYNAMIC.get(name, {})

        def build(name: str = name, params: dict[str, Any] = params) -> Mask:
            return build_mask(name, seqlen=seqlen, corpus="prolong512k", **params)

        mask = build()
        cells = [
            "–"
            if name in DYNAMIC and lowering in FOR_BANDS
            else measured(lambda lower=lower, mask=mask: lower(mask))
            for lowering, lower in LOWERINGS.items()
        ]
        table.add_row(name, "grid" if mask.grid else str(len(mask.bands)), measured(build), *cells)
    Console(width=max(Console().width, 230)).print(table)


if __name__ == "__main__":
    main(parse_length(sys.argv[1]) if len(sys.argv) > 1 else parse_length("512K"), sys.argv[2:])
