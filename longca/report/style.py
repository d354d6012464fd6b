"""The look of figures, the same colour and marker for a method in all of them, and of pages: their theme and their templates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core.units import format_length
from longca.store.text import format_bytes, number, percent, plural

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

HERE = Path(__file__).parent

# Colours for light and for dark ground. The first eight follow Okabe and Ito's set, which colour-blind people can tell
# apart (https://jfly.uni-koeln.de/color/); its yellow and its light blue are darkened so that they stand out on white.
SERIES = (("#0072b2", "#5aa9e6"), ("#d55e00", "#ff8c42"), ("#009e73", "#3ecfa3"), ("#b8538f", "#e58fc4"), ("#8c6d00", "#e3c04b"),
          ("#3a9bd0", "#9bdcff"), ("#6f4ca5", "#b59cf0"), ("#a3332b", "#ff7a70"), ("#5c6670", "#aab4be"), ("#4e7a1f", "#a5d36a"))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
INK, MUTED, RULE, GROUND = ("#1b1f24", "#e7e9ec"), ("#5d6673", "#9ba5b1"), ("#dde1e6", "#343a43"), ("#ffffff", "#15181c")
BAD = ("#c4314b", "#ff6b81")
RC: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "longca", "font.family": "DejaVu Sans", "font.size": 8.5,
                      "path.simplify": False}
POINTS = 72  # an inch
CHAR_IN = 0.056  # mean width of a letter at 8 points
DASHES = (0, (3, 2))
Legend = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Style:
    """Colours, markers and sizes that a figure is drawn with.

    Args:
        methods: all methods of the study, in the order that gives them their colours.
        narrow: for a telephone: less wide, fewer panels in a row.
    """

    methods: tuple[str, ...]
    narrow: bool = False

    @property
    def width_in(self) -> float:
        return 3.9 if self.narrow else 11.0

    def colour(self, method: str) -> str:
        """The method's colour on light ground; the page puts a variable in its place."""
        return SERIES[self.methods.index(method) % len(SERIES)][0]

    def marker(self, method: str) -> str:
        index = self.methods.index(method)
        return MARKERS[(index + index // len(SERIES)) % len(MARKERS)]  # another marker when colours come round again

    def names_in(self, names: Iterable[str]) -> float:
        """Room for the longest of these names to the left of a plot: at most half of it."""
        return min(0.3 + 0.075 * max(map(len, names), default=0), self.width_in / 2)

    def canvas(self, height_in: float) -> Canvas:
        from matplotlib.figure import Figure

        return Figure(figsize=(self.width_in, height_in))

    def panels(self, count: int, *, per_row: int = 5, panel_in: float = 1.35, title_lines: int = 1,
               title_chars: int = 0, legend: Legend) -> tuple[Canvas, list[Axes]]:
        """`count` panels of equal size below a legend.

        Args:
            per_row: panels in a row at most.
            panel_in: height of one panel's axes.
            title_chars: of the longest subtitle, which a panel is wide enough for.
            legend: as `legend_of` makes it.
        """
        top, bottom, left, gap_x, gap_y = 0.17 + self.legend_in(legend), 0.3, 0.5, 0.2, 0.2 + 0.17 * title_lines
        at_most = max(int((self.width_in - left - 0.1 + gap_x) / (CHAR_IN * title_chars + gap_x)), 1)
        columns = min(2 if self.narrow else _fullest(count, per_row), max(count, 1), at_most)
        rows = -(-count // columns)
        height = top + bottom + rows * panel_in + (rows - 1) * gap_y + 0.17 * title_lines + 0.06
        canvas = self.canvas(height)
        width = min((self.width_in - left - 0.1 - (columns - 1) * gap_x) / columns, 3.2)
        axes = []
        for index in range(count):
            row, column = divmod(index, columns)
            x, y = left + column * (width + gap_x), height - top - 0.17 * title_lines - 0.06 - (row + 1) * panel_in - row * gap_y
            ax = canvas.add_axes((x / self.width_in, y / height, width / self.width_in, panel_in / height))
            self.clean(ax)
            ax.tick_params(labelleft=column == 0, labelbottom=index + columns >= count)
            axes.append(ax)
        self.legend(canvas, legend)
        return canvas, axes

    def clean(self, ax: Axes) -> None:
        """Nothing but a base line and faint rules."""
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        ax.spines["bottom"].set(color=MUTED[0], linewidth=0.8)
        ax.tick_params(colors=MUTED[0], length=0, labelsize=8, pad=3)
        ax.tick_params(axis="x", length=3, width=0.8)
        ax.grid(axis="y", color=RULE[0], linewidth=0.7)
        ax.set_axisbelow(True)
        ax.patch.set_visible(False)

    def title(self, ax: Axes, title: str, subtitle: str, lines: int) -> None:
        """Above a panel, from its left edge; `lines` is 2 where any panel has a subtitle."""
        ax.annotate(title, (0, 1), (0, 14 if lines == 2 else 4), xycoords="axes fraction", textcoords="offset points",
                    color=INK[0], fontsize=8.5, fontweight="bold", va="bottom")
        if subtitle:
            ax.annotate(subtitle, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", color=MUTED[0],
                        fontsize=8, va="bottom")

    def line(self, ax: Axes, method: str, x: Any, y: Any, low: Any, high: Any, dashed: bool = False) -> None:
        """One method's points with their spread."""
        colour = self.colour(method)
        ax.vlines(x, low, high, color=colour, linewidth=1.1, alpha=0.55)
        ax.plot(x, y, color=colour, linewidth=1.4, linestyle=DASHES if dashed else "-", marker=self.marker(method),
                markersize=4.2,
                markerfacecolor=GROUND[0] if dashed else colour, markeredgecolor=colour, markeredgewidth=1.0, clip_on=False)

    def legend_of(self, data: pd.DataFrame, *, dots: bool = False) -> Legend:
        """(label, look) of the methods in `data.method`, of directions if `data.direction` has two, and of failures."""
        legend: Legend = [(method, {"color": self.colour(method), "marker": self.marker(method)})
                          for method in self.methods if (data.method == method).any()]
        if "direction" in data and data.direction.nunique() > 1:
            solid, broken = ({"linestyle": "", "marker": "o"}, {"linestyle": "", "marker": "o",
                                                                "markerfacecolor": "none"}) if dots else \
                            ({}, {"linestyle": DASHES})
            legend += [("forward", {"color": MUTED[0], **solid}), ("backward", {"color": MUTED[0], **broken})]
        if (data.status != "ok").any():
            legend.append(("failed", {"color": MUTED[0], "linestyle": "", "marker": "x", "markeredgewidth": 1.5}))
        return legend

    def legend_in(self, legend: Legend) -> float:
        """Height of a legend."""
        return 0.22 * -(-len(legend) // self._legend_columns(legend))

    def legend(self, canvas: Canvas, legend: Legend) -> None:
        """Draw it along the upper edge."""
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], label=label, **{"linewidth": 1.4, "markersize": 4.5, **look}) for label, look in legend]
        if handles:
            canvas.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1.0), frameon=False, fontsize=8.5,
                          labelcolor=INK[0],
                          ncols=min(self._legend_columns(legend), len(handles)), borderaxespad=0.1, handlelength=1.8,
                          columnspacing=1.6, handletextpad=0.5)

    def _legend_columns(self, legend: Legend) -> int:
        widest = max((len(label) for label, _ in legend), default=1)
        return max(int((self.width_in - 0.5) / (0.45 + 0.085 * widest)), 1)


def _fullest(count: int, most: int) -> int:
    """The number of columns that leaves the fewest empty places in the last row, the larger of equals."""
    return min(range(most, max(most - 2, 1), -1), key=lambda columns: -count % columns)


def theme() -> dict[str, tuple[str, str, str]]:
    """Each colour that figures use: light value → (name of the page's variable, light value, dark value)."""
    named = {f"series-{index}": pair for index, pair in enumerate(SERIES)}
    named |= {"ink": INK, "muted": MUTED, "rule": RULE, "ground": GROUND, "bad": BAD}
    return {light: (name, light, dark) for name, (light, dark) in named.items()}


def page_templates(*folders: Path) -> Environment:
    """Templates of these folders and of the report; what they show is escaped.

    A page's head includes `style.html.j2`, which wants `theme` (`theme`) and `css` (`static_text("report.css")`).
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(loader=FileSystemLoader([*folders, HERE / "templates"]), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Any] = {"number": number, "percent": percent, "bytes": format_bytes, "tokens": format_length, "plural": plural}
    made.filters.update(filters)
    return made


def static_text(name: str) -> str:
    """A style sheet or script of the report."""
    return (HERE / "static" / name).read_text(encoding="utf-8")
