"""The facts of the study's page beside its exhibits: the 14 masks, and how much of the study's own grid the
records hold."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from longca.core import Registry, format_length
from longca.lab.claims import STUDY_GPU
from longca.lab.report.look import MaskDrawing, mask_drawings
from longca.lab.store.text import percent, short_device
from longca.lab.studies import Cell, load_study
from longca.masks import Pattern, build_mask

if TYPE_CHECKING:
    import pandas as pd

LENGTHS = {1024: "pile", 8192: "pile", 32768: "prolong64k"}  # and the corpus of the study there
STUDY = "paper"
PARTS = {"dense": "dense kernels", "sparse": "block-sparse kernels", "cp": "context parallelism"}


@dataclass(frozen=True)
class GalleryMask:
    """One mask of the study."""

    pattern: Pattern
    drawing: MaskDrawing
    densities: tuple[float, ...]
    """share of pairs that is visible at each of `LENGTHS`, with default parameters and seed 0"""


@dataclass(frozen=True)
class Gallery:
    """All masks, in the study's order."""

    lengths: tuple[str, ...]
    masks: tuple[GalleryMask, ...]
    finding: str


def gallery() -> Gallery:
    """The masks that have a number in the study."""
    patterns = sorted(
        (one for one in Registry("mask").load_all() if one.number is not None),
        key=lambda pattern: pattern.number,
    )
    drawings = mask_drawings(pattern.name for pattern in patterns)
    masks = tuple(
        GalleryMask(pattern, drawing, tuple(_density(pattern, *length) for length in LENGTHS.items()))
        for pattern, drawing in zip(patterns, drawings, strict=True)
    )
    static = [mask for mask in masks if mask.pattern.family != "dynamic"]
    sparsest = min(static, key=lambda mask: mask.densities[-1])
    return Gallery(
        tuple(map(format_length, LENGTHS)),
        masks,
        f"Of {len(static)} static masks, {sparsest.pattern.label} shows least at "
        f"{format_length(max(LENGTHS))}: "
        f"{100 * sparsest.densities[-1]:.1f} % of all pairs",
    )


def _density(pattern: Pattern, seqlen: int, corpus: str) -> float:
    mask = build_mask(pattern.name, seqlen=seqlen, corpus=corpus if pattern.uses_documents else None)
    return float(mask.area) / seqlen**2 / mask.num_groups


@dataclass(frozen=True)
class CoveragePart:
    """Cells of one part of the grid, and how many of them one model of GPU has measured."""

    gpu: str
    name: str
    asked: int
    settled: int
    """those with a record: a number, or a reason why there is none"""
    timed: int

    @property
    def share(self) -> str:
        return percent(self.settled / self.asked) if self.asked else ""


@dataclass(frozen=True)
class Coverage:
    """The parts of the grid, and what they say together."""

    parts: tuple[CoveragePart, ...]
    finding: str


def coverage(table: pd.DataFrame) -> Coverage:
    """The cells of `config/studies/paper.yaml` of which there is a record, for each model of GPU by
    itself."""
    by_part: dict[str, list[str]] = {name: [] for name in PARTS}
    for cell in load_study(STUDY).cells():
        by_part[_part(cell)].append(cell.cell_id)
    devices = sorted(
        {str(device) for device in table.device[table.device_type == "cuda"]},
        key=lambda name: (STUDY_GPU not in name, name),
    )
    parts = tuple(
        part
        for device in devices
        for part in _parts(table.loc[table.device == device], short_device(device), by_part)
    )
    if not parts:
        return Coverage((), "The records settle no cell of the study's grid on a GPU")
    words = [
        f"{gpu} {_listed([f'{part.share} of the {part.asked:,} cells of {part.name}' for part in of_gpu])}"
        for gpu, of_gpu in groupby(parts, key=lambda part: part.gpu)
    ]
    return Coverage(parts, f"Of the study's grid, records settle on {'; on '.join(words)}")


def _parts(rows: pd.DataFrame, gpu: str, by_part: dict[str, list[str]]) -> list[CoveragePart]:
    settled = set(rows.cell_id)
    timed = set(rows.cell_id[rows.status == "ok"])
    return [
        CoveragePart(gpu, PARTS[name], len(ids), len(settled.intersection(ids)), len(timed.intersection(ids)))
        for name, ids in by_part.items()
    ]


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _part(cell: Cell) -> str:
    return "cp" if cell.kind == "cp" else "sparse" if "density" in cell.mask_params else "dense"
