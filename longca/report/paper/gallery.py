"""The study's 14 masks: drawn, defined, and how much of a sequence they show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca.core.plugin import Registry
from longca.core.units import format_length
from longca.masks import build_mask
from longca.masks.contract import Pattern

SIDE = 64  # tokens of a picture
DOCUMENTS = (20, 7, 25, 12)
PARAMS = {  # small enough for a picture; other patterns have no parameters that matter there
    "sliding_window": {"window": 8}, "causal_sliding_window": {"window": 12}, "global_sliding_window": {"num_global": 6, "window": 6},
    "block_causal_document": {"block": 5}, "block_sparse_uniform": {"block": 8, "density": 0.4},
    "block_sparse_variable": {"mean_block": 8, "density": 0.4},
}
LENGTHS = {1024: "pile", 8192: "pile", 32768: "prolong64k"}  # and the corpus of the study there


@dataclass(frozen=True)
class Drawn:
    """One mask of the study."""

    pattern: Pattern
    path: str
    """outline of the visible pairs, for an SVG of 64 by 64"""
    densities: tuple[float, ...]
    """share of pairs that is visible at each of `LENGTHS`, with default parameters and seed 0"""


@dataclass(frozen=True)
class Gallery:
    """All masks, in the study's order."""

    lengths: tuple[str, ...]
    masks: tuple[Drawn, ...]
    finding: str


def gallery() -> Gallery:
    """The masks that have a number in the study."""
    patterns = sorted((one for one in Registry("mask").load_all() if one.number is not None), key=lambda one: one.number)
    masks = tuple(Drawn(one, outline(small_mask(one)), tuple(_density(one, *place) for place in LENGTHS.items())) for one in patterns)
    static = [mask for mask in masks if mask.pattern.family != "dynamic"]
    sparsest = min(static, key=lambda mask: mask.densities[-1])
    return Gallery(tuple(map(format_length, LENGTHS)), masks,
                   f"Of {len(static)} static masks, {sparsest.pattern.label} shows least at {format_length(max(LENGTHS))}: "
                   f"{100 * sparsest.densities[-1]:.1f} % of all pairs")


def small_mask(pattern: Pattern) -> np.ndarray:
    """The bool (64, 64) raster that is drawn."""
    documents = np.array(DOCUMENTS) if pattern.uses_documents else None
    return build_mask(pattern.name, seqlen=SIDE, documents=documents, **PARAMS.get(pattern.name, {})).dense()


def outline(visible: np.ndarray) -> str:
    """An SVG path over a bool (S, S) raster: one rectangle for each interval of keys, as high as it stays the same."""
    pieces, growing = [], dict[tuple[int, int], int]()
    for row in range(len(visible) + 1):
        edges = np.flatnonzero(np.diff(np.pad(visible[row], 1).astype(np.int8))) if row < len(visible) else np.array([], int)
        now = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for start, end in sorted(set(growing) - now):
            pieces.append(f"M{start} {growing.pop((start, end))}H{end}V{row}H{start}Z")
        for interval in now - set(growing):
            growing[interval] = row
    return "".join(pieces)


def _density(pattern: Pattern, seqlen: int, corpus: str) -> float:
    mask = build_mask(pattern.name, seqlen=seqlen, corpus=corpus if pattern.uses_documents else None)
    return float(mask.area) / seqlen ** 2 / mask.num_groups
