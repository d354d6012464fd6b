"""The contract of the report's figures. One file in `figures/` is one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from longca.core import Plugin

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style


class Figure(Plugin):
    """A drawing of the derived table (`longca.lab.store.table.derived`), with the data it shows."""

    section: ClassVar[Literal["dense", "sparse", "cp", "predicted", "memory", "accuracy", "noise"]]
    order: ClassVar[int] = 100  # within the section
    caption: ClassVar[str] = ""  # notes on the measurement and on reading the figure

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        """Its rows, which are also its CSV; empty if there is nothing to draw."""
        raise NotImplementedError

    def title(self, data: pd.DataFrame) -> str:
        """The figure's finding, computed from the data, in so few words that it is read once."""
        raise NotImplementedError

    def basis(self, data: pd.DataFrame) -> str:
        """The cases on which the finding rests, for the line below the title; "" if the title says it all."""
        return ""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        raise NotImplementedError
