"""Effects of defects that no GPU is needed for: pairs that the released code counts beside those that run,
bytes that its ring keeps.

The rules of the released code are those of its commit 22683e3, told as formulas; nothing of it runs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import format_length
from longca.lab.paper.analysis.select import GQA
from longca.lab.store.text import format_bytes, number, percent
from longca.masks import build_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

LENGTHS = (1024, 8192, 49152)
WINDOW = 1024
# the study draws the width of global windows from 1 to a third of the sequence: a small one, the mean, the
# most
GLOBAL_SHARES = 24, 6, 3
SPARSE_LENGTH = 32768
BLOCK = 64
KV_HEADS = 8
DENSITIES = (0.2, 0.5, 0.8)
RING_TOKENS = 8192  # tokens of a rank
HEAD_DIM = 128
WORLDS = (4, 8, 32, 96)
BF16 = 2
FP32 = 4
# numbers of `longca.lab.paper.repairs`
WINDOWS = 1
GLOBALS = 2
BLOCKS = 9
RING = 18


def counted() -> pd.DataFrame:
    """A row for each case of a defect.

    Columns: defect (number of a `Repair`), case, unit, released, without (the defect), ratio of both, common
    (the share of FlashInfer's blocks that are blocks of the others) and world (ranks of a ring).
    """
    import pandas as pd

    table = pd.DataFrame([*_windows(), *_global_windows(), *_blocks(), *_rings()])
    return table.assign(ratio=table.released / table.without)


def effects(data: pd.DataFrame) -> dict[int, str]:
    """Defect → its effect, a sentence without its end."""

    def span(defect: int, column: str) -> str:
        values = data.loc[data.defect == defect, column].astype(float)
        low = percent(float(values.min()))
        high = percent(float(values.max()))
        return low if low == high else f"{low} to {high}"

    rings = data.loc[data.defect == RING]
    least, most = (rings.loc[index] for index in (rings.ratio.idxmin(), rings.ratio.idxmax()))
    return {
        WINDOWS: f"Counted: FLOPs are those of {span(WINDOWS, 'ratio')} of the pairs that FA2, FA3, cuDNN, FlexAttention and "  # noqa: E501
        "FlashMask run",
        GLOBALS: f"Counted: FLOPs are those of {span(GLOBALS, 'ratio')} of the pairs that FlexAttention and FlashMask run",  # noqa: E501
        BLOCKS: f"Drawn: FlashInfer has {span(BLOCKS, 'ratio')} of the blocks that the others have, of which {span(BLOCKS, 'common')} "  # noqa: E501
        "are blocks of the others",
        RING: f"Counted: the released ring keeps {number(float(least.ratio))} times as much on {least.world:.0f} ranks and "  # noqa: E501
        f"{number(float(most.ratio))} times on {most.world:.0f}, where it is {format_bytes(float(most.released))}",  # noqa: E501
    }


def _row(
    defect: int, case: str, released: float, without: float, unit: str = "pairs", **more: float
) -> dict[str, Any]:
    return {
        "defect": defect,
        "case": case,
        "unit": unit,
        "released": float(released),
        "without": float(without),
        **more,
    }


def _windows() -> Iterator[dict[str, Any]]:
    """The window that is counted is causal, the one that kernels run looks both ways."""
    for seqlen in LENGTHS:
        both, causal = (
            build_mask(name, seqlen=seqlen, window=WINDOW).area
            for name in ("sliding_window", "causal_sliding_window")
        )
        yield _row(WINDOWS, f"window {WINDOW}, {format_length(seqlen)}", causal, both)


def _global_windows() -> Iterator[dict[str, Any]]:
    """Those that are counted beside those that run, with twice as many global tokens."""
    for seqlen in LENGTHS[1:]:
        for share in GLOBAL_SHARES:
            width = seqlen // share - (share == GLOBAL_SHARES[-1])
            run = build_mask(
                "global_sliding_window", seqlen=seqlen, window=width, num_global=min(2 * width, seqlen)
            ).area
            yield _row(
                GLOBALS,
                f"window {format_length(width)}, {format_length(seqlen)}",
                counted_global(seqlen, width),
                run,
            )


def counted_global(seqlen: int, width: int) -> int:
    """Pairs of three slices: a causal one of the first columns and one of the first rows, both aligned at
    their last row and column, and a window on the rest."""
    columns = width * (width + 1) // 2
    rows = width * (seqlen - width) - width * (width - 1) // 2
    return columns + rows + build_mask("sliding_window", seqlen=seqlen - width, window=width).area


def _blocks() -> Iterator[dict[str, Any]]:
    """FlashInfer's blocks are drawn one by one, those of the others by rank within a row."""
    rng = np.random.default_rng(0)
    side = SPARSE_LENGTH // BLOCK
    for density in DENSITIES:
        scores = rng.random((KV_HEADS, side, side))
        first = side - int(density * side)  # of the kept ones, in the order of a row's scores
        kept = scores >= np.partition(scores, first, axis=-1)[..., first, None]
        anew = rng.random(kept.shape) < density
        yield _row(
            BLOCKS,
            f"blocks of {BLOCK}, density {density:g}, {format_length(SPARSE_LENGTH)}",
            int(anew.sum()) * BLOCK**2,
            int(kept.sum()) * BLOCK**2,
            common=float((anew & kept).sum() / anew.sum()),
        )


def _rings() -> Iterator[dict[str, Any]]:
    """The released ring keeps the keys, values and partial output of every step, this project's the keys and
    values of two and a sum."""
    num_q, num_kv = GQA
    output, keys = (RING_TOKENS * heads * HEAD_DIM for heads in (num_q, 2 * num_kv))
    for world in WORLDS:
        yield _row(
            RING,
            f"ring of {world} × {format_length(RING_TOKENS)}, {num_q}:{num_kv} heads",
            world * (output + keys) * BF16,
            2 * keys * BF16 + output * FP32,
            "bytes",
            world=world,
        )
