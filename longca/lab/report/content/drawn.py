"""The figures of a page: drawn as its elements, and as files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import Registry, UserError, in_forks
from longca.lab.report.content.blanks import Blank, Outcomes
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import Inline, PageDrawings, draw, inline, short_name, with_shared_styles
from longca.lab.report.series import for_file, sampled
from longca.lab.store import replace_file
from longca.lab.store.export import frame_csv
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.contract import Figure


MANY_ROWS = 4000
"""from so many on figures are drawn side by side"""


@dataclass(frozen=True)
class Drawn:
    """A figure of the page; without data it has no drawing."""

    name: str
    label: str
    title: str
    subtitle: str
    caption: str
    drawing: Inline | None = None
    failure: str = ""
    """the error that prevented the drawing"""
    blanks: tuple[Blank, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there are no data for the figure."""
        return self.drawing is None and not self.failure


@dataclass(frozen=True)
class Paper:
    """The context of figures: the study's methods and the variables of their colours, the row of each record,
    the masks with drawings, and the folder for side files."""

    methods: tuple[str, ...]
    variables: Mapping[str, str]
    rows: Mapping[str, int]
    pictures: frozenset[str]
    beside: Path | None
    is_part: bool
    """True if the page contains only some of the records"""

    def style(self, **options: Any) -> Style:
        return Style(self.methods, cells=frozenset(self.rows) if self.is_part else None, **options)


def drawn_figures(
    table: pd.DataFrame, paper: Paper, beside: Sequence[Callable[[], Any]] = ()
) -> tuple[dict[str, list[Drawn]], PageDrawings, list[Any]]:
    """The figures that have data, by section, in their order; their drawings with what they share; and the
    results of other work.

    Args:
        beside: other work on a large table, which is done side by side with the figures.
    """
    figures: dict[str, list[Drawn]] = {}
    outcomes = Outcomes(table)
    loaded = sorted(Registry("figure").load_all(), key=lambda figure: (figure.order, figure.name))

    def made(number: int) -> Any:
        if number < len(beside):  # first: they take longest
            return beside[number]()
        number -= len(beside)
        return _drawn(loaded[number], table, outcomes, short_name(number), paper)

    every = in_forks(made, len(beside) + len(loaded), are_worth_it=len(table) >= MANY_ROWS)
    for figure, drawn in zip(loaded, every[len(beside) :], strict=True):
        if not drawn.is_empty:
            figures.setdefault(figure.section, []).append(drawn)
    drawings = [drawn.drawing for of_section in figures.values() for drawn in of_section if drawn.drawing]
    shared = with_shared_styles(drawings)
    lighter = dict(zip(map(id, drawings), shared.drawings, strict=True))
    figures = {
        section: [replace(drawn, drawing=lighter.get(id(drawn.drawing))) for drawn in of_section]
        for section, of_section in figures.items()
    }
    return figures, shared, every[: len(beside)]


def _drawn(figure: Figure, table: pd.DataFrame, outcomes: Outcomes, short: str, paper: Paper) -> Drawn:
    """The figure, and its files in `figures/`. If it raises, the error is kept, since a broken plug-in must
    not prevent the page."""
    try:
        return _draw(figure, table, outcomes, short, paper)
    except UserError:
        raise
    except Exception as error:  # a plug-in may raise anything
        return Drawn(
            figure.name,
            figure.label,
            figure.label,
            "",
            figure.caption,
            failure=f"{type(error).__name__}: {error}",
        )


def _draw(figure: Figure, table: pd.DataFrame, outcomes: Outcomes, short: str, paper: Paper) -> Drawn:
    data = figure.data(table)
    if not len(data):
        return Drawn(figure.name, figure.label, figure.label, "", figure.caption)
    title = figure.title(data)
    if paper.beside:
        folder = paper.beside / "figures"
        replace_file(folder / f"{figure.name}.svg", draw(figure, data, paper.style()).encode())
        replace_file(folder / f"{figure.name}.csv", frame_csv(for_file(data)))
    devices = ", ".join(sorted({device for device in table.device[table.status == "ok"] if device}))
    number_of = sampled(data) if "num_cells" in data else plural(len(data), "cell")
    if "cell_id" in data and paper.is_part:
        number_of += f", {len(paper.style().dots(data)):,} of them as dots"
    style = paper.style(on_page=True, pictures=paper.pictures)
    drawing = inline(figure, data, style, short, title, paper.rows, paper.variables)
    return Drawn(
        figure.name,
        figure.label,
        title,
        " · ".join(filter(None, (devices, number_of, figure.basis(data)))),
        figure.caption,
        drawing,
        blanks=outcomes.blanks(data),
    )
