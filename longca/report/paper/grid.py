"""How much of the study's own grid the records hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.cell import Cell
from longca.core.study import load_study
from longca.store.text import percent

if TYPE_CHECKING:
    import pandas as pd

STUDY = "paper"
PARTS = {"dense": "dense kernels", "sparse": "block-sparse kernels", "cp": "context parallelism"}


@dataclass(frozen=True)
class Part:
    """Cells of one part of the grid."""

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

    parts: tuple[Part, ...]
    finding: str


def coverage(table: pd.DataFrame) -> Coverage:
    """The cells of `config/studies/paper.yaml` of which there is a record."""
    settled, timed = set(table.cell_id), set(table.cell_id[table.status == "ok"])
    by_part: dict[str, list[str]] = {name: [] for name in PARTS}
    for cell in load_study(STUDY).cells():
        by_part[_part(cell)].append(cell.cell_id)
    parts = tuple(Part(PARTS[name], len(ids), len(settled.intersection(ids)), len(timed.intersection(ids)))
                  for name, ids in by_part.items())
    words = [f"{part.share} of the {part.asked:,} cells of {part.name}" for part in parts]
    return Coverage(parts, f"The records settle {', '.join(words[:-1])} and {words[-1]} of the study's grid")


def _part(cell: Cell) -> str:
    return "cp" if cell.kind == "cp" else "sparse" if "density" in cell.mask_params else "dense"
