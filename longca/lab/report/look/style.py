"""The style of figures: sizes, lines, titles and legends. For colours and markers see
`longca.lab.report.look.colours`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.lab.report.look.colours import BAD, FAINT, GROUND, INK, MUTED, RULE, css_colour, looks
from longca.lab.report.look.grid import CHAR_IN, NARROW_IN, POINTS, panel_grid
from longca.lab.report.look.tags import Key, legend_tag, panel_tag, points_tag, title_tag

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.colours import Look

RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "longca",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    # names are plain text: a $ does not begin a formula
    "path.simplify": False,
    "text.parse_math": False,
}
__all__ = ["BAD", "FAINT", "GROUND", "INK", "MUTED", "RULE", "Style", "spread"]
PICTURE = 12  # points for each line of the title: space for the drawing of the mask
NAME_CHAR_IN = 0.062  # mean width of a letter of a name to the left of a plot, at 8 points
BEFORE_NAMES_IN = 0.15
MOST_OF_NAMES = 0.56  # of a plot's width
LABEL = 8.5  # distance in points of labels at the ends of lines
DASHES = (0, (3, 2))
Legend = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Style:
    """Colours, markers and sizes of a figure.

    Args:
        methods: all methods of the study, in the order of the legend.
        on_page: True for a page, which has a separate legend; files contain their legend.
        pictures: masks with drawings on the page, which precede their names.
        cells: cells with their own marks in figures with one mark for each cell; all if None.
        best: methods drawn in colour; the others are grey. All are coloured if it is empty.
        width_in: inches.
    """

    methods: tuple[str, ...]
    on_page: bool = False
    pictures: frozenset[str] = frozenset()
    cells: frozenset[str] | None = None
    best: tuple[str, ...] = ()
    width_in: float = 11.0

    @property
    def narrow(self) -> Style:
        """The same style for windows of 390 px."""
        return replace(self, width_in=NARROW_IN)

    @cached_property
    def _looks(self) -> dict[str, Look]:
        return looks(self.methods)

    def with_best(self, best: Iterable[str]) -> Style:
        """The same style with colours only for these methods."""
        return replace(self, best=tuple(best))

    def dots(self, data: pd.DataFrame) -> pd.DataFrame:
        """The rows of cells with their own marks."""
        if self.cells is None:
            return data
        return data[[cell_id in self.cells for cell_id in data.cell_id.tolist()]]

    def is_faint(self, method: str) -> bool:
        return bool(self.best) and method not in self.best

    def colour(self, method: str) -> str:
        """The method's colour on a light background; the page replaces it with a variable."""
        return FAINT[0] if self.is_faint(method) else self._looks[method].colour

    def marker(self, method: str) -> str:
        return self._looks[method].marker

    def wrapped(self, names: Iterable[str]) -> list[str]:
        """The names to the left of a plot, each in as many lines as it takes to leave room for the plot."""
        most_chars = int((MOST_OF_NAMES * self.width_in - BEFORE_NAMES_IN) / NAME_CHAR_IN)
        return ["\n".join(textwrap.wrap(name, most_chars, break_on_hyphens=False)) for name in names]

    def names_in(self, names: Iterable[str]) -> float:
        """Space for the longest line of these names to the left of a plot, at most `MOST_OF_NAMES` of its
        width."""
        longest = max((len(line) for name in names for line in name.split("\n")), default=0)
        return min(BEFORE_NAMES_IN + NAME_CHAR_IN * longest, MOST_OF_NAMES * self.width_in)

    def canvas(self, height_in: float) -> Canvas:
        from matplotlib.figure import Figure

        return Figure(figsize=(self.width_in, height_in))

    def panels(
        self,
        titles: Sequence[str],
        *,
        per_row: int = 5,
        panel_in: float = 1.35,
        title_lines: int = 1,
        title_chars: int = 0,
        label_chars: int = 0,
        legend: Legend,
    ) -> tuple[Canvas, list[Axes]]:
        """Panels of equal size below a legend.

        Args:
            titles: of the panels, under which the page enlarges them.
            per_row: panels in a row at most.
            panel_in: height of one panel's axes.
            title_chars: length of the longest subtitle, which fits into the width of a panel.
            label_chars: length of the longest label at the end of a line, with space to the right of each
                panel.
            legend: as `legend_of` makes it.
        """
        grid = panel_grid(
            len(titles),
            self.width_in,
            per_row=per_row,
            panel_in=panel_in,
            above_in=self.legend_in(legend),
            title_lines=title_lines,
            title_in=CHAR_IN * title_chars + (PICTURE * title_lines / POINTS if self.pictures else 0.0),
            label_chars=label_chars,
        )
        canvas = self.canvas(grid.height_in)
        axes = []
        for index, title in enumerate(titles):
            x, y = grid.corner(index)
            base = grid.height_in - y - grid.panel_in
            ax = canvas.add_axes(
                (
                    x / self.width_in,
                    base / grid.height_in,
                    grid.width_in / self.width_in,
                    grid.panel_in / grid.height_in,
                )
            )
            self.clean(ax)
            ax.set_gid(panel_tag(title, shift=grid.shift(index) if self.on_page else (0.0, 0.0)))
            axes.append(ax)
        self.legend(canvas, legend, grid.narrow.size)
        return canvas, axes

    def clean(self, ax: Axes) -> None:
        """Axes with only a base line and faint rules."""
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        ax.spines["bottom"].set(color=MUTED[0], linewidth=0.8)
        ax.tick_params(colors=MUTED[0], length=0, labelsize=8, pad=3)
        ax.tick_params(axis="x", length=3, width=0.8)
        ax.grid(axis="y", color=RULE[0], linewidth=0.7)
        ax.set_axisbelow(True)
        ax.patch.set_visible(False)

    def title(self, ax: Axes, title: str, subtitle: str, lines: int, mask: str = "") -> None:
        """A title above a panel, from its left edge, after the drawing of its mask if the page has one.

        Args:
            lines: 2 if any panel has a subtitle.
        """
        shift = PICTURE * lines if mask in self.pictures else 0
        text = ax.annotate(
            title,
            (0, 1),
            (shift, 14 if lines == 2 else 4),
            xycoords="axes fraction",
            textcoords="offset points",
            color=INK[0],
            fontsize=8.5,
            fontweight="bold",
            va="bottom",
        )
        text.set_gid(title_tag(mask, shift) if shift else title_tag())
        if subtitle:
            second = ax.annotate(
                subtitle,
                (0, 1),
                (shift, 3),
                xycoords="axes fraction",
                textcoords="offset points",
                color=MUTED[0],
                fontsize=8,
                va="bottom",
            )
            second.set_gid(title_tag())

    def line(
        self,
        ax: Axes,
        method: str,
        points: pd.DataFrame,
        x: str,
        *,
        dashed: bool = False,
        joined: bool = True,
    ) -> None:
        """One method's points (`longca.lab.report.series.points`), with their spread unless the markers cover
        it.

        The axes must already have their final scale and limits.

        Args:
            dashed: for the backward: dashed lines and hollow marks.
            joined: draw a line through the points.
        """
        colour = self.colour(method)
        faint = self.is_faint(method)
        at, value, low, high = (points[name].to_numpy(float) for name in (x, "value", "low", "high"))
        behind: dict[str, Any] = {"zorder": 1.5 if faint else 2.5}
        size = 3.2 if faint else 4.4
        heights = [
            ax.transData.transform(np.column_stack([at, values]))[:, 1] * POINTS / ax.figure.dpi
            for values in (low, value, high)
        ]
        seen = np.diff(heights, axis=0).max(axis=0) > size / 2
        if seen.any():
            self.mark(
                ax.vlines(
                    at[seen],
                    low[seen],
                    high[seen],
                    color=colour,
                    linewidth=0.7 if faint else 1.1,
                    alpha=0.55,
                    **behind,
                ),
                method,
            )
        (line,) = ax.plot(
            at,
            value,
            color=colour,
            linestyle="" if not joined else DASHES if dashed else "-",
            lw=0.8 if faint else 1.5,
            marker=self.marker(method),
            markersize=size,
            markeredgewidth=0.7 if faint else 1.0,
            markeredgecolor=colour,
            markerfacecolor=GROUND[0] if dashed else colour,
            clip_on=False,
            **behind,
        )
        self.mark(line, method, points.cell_ids)

    def label_ends(self, ax: Axes, ends: Iterable[tuple[str, str, float]]) -> None:
        """Names at the right edge of a panel, each as close as possible to the end of its line.

        Args:
            ends: (method, label, height of the line's end in axes units).
        """
        ordered = sorted(ends, key=lambda end: end[2])
        height = ax.get_window_extent().height * POINTS / ax.figure.dpi
        wanted = [
            float(ax.transAxes.inverted().transform(ax.transData.transform((1.0, value)))[1]) * height
            for _, _, value in ordered
        ]
        places = spread(wanted, LABEL, height - LABEL / 2)  # below the title, which may be as long
        for (method, label, _), place in zip(ordered, places, strict=True):
            text = ax.annotate(
                label,
                (1, 0),
                (3, place),
                xycoords="axes fraction",
                textcoords="offset points",
                va="center",
                color=self.colour(method),
                fontsize=7,
                annotation_clip=False,
            )
            self.mark(text, method)

    def mark(self, artist: Artist, method: str, cell_ids: Iterable[str] = ()) -> None:
        """Annotates an artist in the SVG with its method and cells: its marks in order, each with its cell
        ids."""
        artist.set_gid(points_tag(method, cell_ids, faint=self.is_faint(method)))

    def legend_of(self, data: pd.DataFrame, *, dots: bool = False) -> Legend:
        """(label, style) of the methods in `data.method`, of directions if `data.direction` has two, and of
        failures."""
        present = set(data.method)
        legend: Legend = [
            (method, {"color": self.colour(method), "marker": self.marker(method)})
            for method in sorted((name for name in self.methods if name in present), key=self.is_faint)
        ]
        if "direction" in data and data.direction.nunique() > 1:
            solid, broken = (
                (
                    {"linestyle": "", "marker": "o"},
                    {"linestyle": "", "marker": "o", "markerfacecolor": "none"},
                )
                if dots
                else ({}, {"linestyle": DASHES})
            )
            legend += [("forward", {"color": MUTED[0], **solid}), ("backward", {"color": MUTED[0], **broken})]
        if (data.status != "ok").any():
            legend.append(
                ("failed", {"color": MUTED[0], "linestyle": "", "marker": "x", "markeredgewidth": 1.5})
            )
        return legend

    def legend_in(self, legend: Legend) -> float:
        """Height of a legend; 0 on the page."""
        if self.on_page:
            return 0.0
        return 0.22 * -(-len(legend) // self._legend_columns(legend))

    def legend(self, canvas: Canvas, legend: Legend, narrow_size: tuple[float, float] | None = None) -> None:
        """Draw the legend along the upper edge; for the page only record its entries, and the size of the
        drawing in narrow windows, in points, if its panels have places there."""
        if self.on_page:
            canvas.set_gid(legend_tag((self._key(label, look) for label, look in legend), narrow_size))
            return
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], label=label, **{"linewidth": 1.4, "markersize": 4.5, **look})
            for label, look in legend
        ]
        if handles:
            canvas.legend(
                handles=handles,
                loc="upper left",
                bbox_to_anchor=(0.0, 1.0),
                frameon=False,
                fontsize=8.5,
                labelcolor=INK[0],
                ncols=min(self._legend_columns(legend), len(handles)),
                borderaxespad=0.1,
                handlelength=1.8,
                columnspacing=1.6,
                handletextpad=0.5,
            )

    def _key(self, label: str, look: dict[str, Any]) -> Key:
        return Key(
            label,
            look.get("marker", ""),
            self._kind(label),
            self._colour_of_sign(label, look),
            look.get("markerfacecolor") == "none",
            look.get("linestyle") == DASHES,
        )

    def _kind(self, label: str) -> str:
        return "sign" if label not in self.methods else "faint" if self.is_faint(label) else ""

    def _colour_of_sign(self, label: str, look: dict[str, Any]) -> str:
        colour = look.get("color", "")
        return css_colour(colour) if self._kind(label) == "sign" and colour != MUTED[0] else ""

    def _legend_columns(self, legend: Legend) -> int:
        widest = max((len(label) for label, _ in legend), default=1)
        return max(int((self.width_in - 0.5) / (0.45 + 0.085 * widest)), 1)


def spread(wanted: list[float], gap: float, most: float) -> list[float]:
    """Ascending positions from 0 to `most`, at least `gap` apart, close to the given ascending ones.

    Neighbours that are too close form a group around the mean of their positions; groups that meet are
    merged.
    """
    groups: list[list[float]] = []
    for want in wanted:
        groups.append([want])
        while len(groups) > 1 and _low(groups[-1], gap, most) < _low(groups[-2], gap, most) + gap * len(
            groups[-2]
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_low(group, gap, most) + gap * index for group in groups for index in range(len(group))]


def _low(group: list[float], gap: float, most: float) -> float:
    room = gap * (len(group) - 1)
    return max(min(sum(group) / len(group) - room / 2, most - room), 0.0)
