"""The contract of the study's exhibits. One file in `figures/` is one figure or one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from longca.core import Plugin

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Style

Section = Literal["data", "dense", "sparse", "memory", "cp", "beyond", "released"]


class Exhibit(Plugin):
    """A figure or a table of the study, made of the derived table (`longca.lab.store.table.derived`)."""

    section: ClassVar[Section]
    order: ClassVar[int] = 100
    """its place within the section"""
    number: ClassVar[str] = ""
    """the study's own name for it, such as "Figure 3"; "" where the study has nothing like it"""
    caption: ClassVar[str] = ""
    """how it was measured and how to read it"""
    needs_records: ClassVar[bool] = True
    """False if it shows something that is known without a measurement"""
    predicted: ClassVar[bool] = False
    """True if its numbers are predictions, which the page says beside them"""
    methods: ClassVar[tuple[str, ...]] = ()
    """those that it shows though no record need have them"""

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows that it shows, which are also its CSV; empty if there is nothing to show.

        A column `cell_ids`, or several that begin so, name the cells behind each row, divided by blanks.
        Where `unit` is TFLOP/s, the column `value` is compared with published rates.
        """
        raise NotImplementedError

    def title(self, data: pd.DataFrame) -> str:
        """Its finding: a sentence that follows from the data."""
        raise NotImplementedError

    def cell_ids(self, data: pd.DataFrame) -> list[str]:
        """The cells behind the data: those that its columns `cell_ids…` name, each once."""
        columns = [name for name in data if str(name).startswith("cell_ids")]
        return list(
            dict.fromkeys(
                cell_id for name in columns for ids in data[name].dropna() for cell_id in ids.split()
            )
        )

    def effects(self, data: pd.DataFrame) -> dict[int, str]:
        """Findings of the data on defects of the released code: number of a `Repair` → a sentence without its
        end."""
        return {}


class PaperFigure(Exhibit):
    """An exhibit that is drawn."""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        raise NotImplementedError


@dataclass(frozen=True)
class Cells:
    """The cells of a table as text, the best of a row marked."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells to mark"""
    num_keys: int = 1
    """the first columns that name a row"""
    texts: frozenset[int] = frozenset()
    """columns of sentences, which are wrapped"""
    cell_ids: tuple[str, ...] = ()
    """of each row: the cells of its numbers, divided by blanks; only where columns are methods"""


class PaperTable(Exhibit):
    """An exhibit that is a table."""

    def cells(self, data: pd.DataFrame) -> Cells:
        """The table as the page prints it."""
        raise NotImplementedError
