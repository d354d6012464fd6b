"""Plots of dots in rows: a strip of many dots for each name, with a tick at their median, or a few marks for
each setting.

    name a  ·· ··│·· ·            setting a   o  x   *
    name b     · ·│··· ·          setting b  o    x *
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from longca.lab.report.look.style import INK, MUTED, POINTS, RULE
from longca.lab.report.look.tags import panel_tag, rows_tag

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Legend, Style

WIDEST_IN = 6.5  # of a plot
MARKED_ROW_IN = 0.24
LINE_IN = 0.14  # of a name
# percent: where `deviation_scale` is linear, and its marks
DEVIATION = 10.0
DEVIATIONS = (-50, -20, -10, -5, 0, 5, 10, 20, 50, 200)
LABEL_POINTS = 24.0  # width of a mark's label
LINEAR = (1.0, 0.5)  # percent up to which a scale is linear, and the width of this part in decades


def strips(style: Style, names: Sequence[str], row_in: float) -> tuple[Canvas, Axes]:
    """A plot with an empty row for each name, from top to bottom."""
    names = style.wrapped(names)
    left_in = style.names_in(names)
    rows_in = (row_in + more_lines_in(names)) * len(names) + 0.1
    height_in = 0.15 + rows_in + 0.5
    canvas = style.canvas(height_in)
    width_in = min(style.width_in - left_in - 0.3, WIDEST_IN)
    ax = canvas.add_axes(
        (left_in / style.width_in, 0.5 / height_in, width_in / style.width_in, rows_in / height_in)
    )
    name_strips(ax, style, names)
    ax.set_gid(rows_tag())
    return canvas, ax


def more_lines_in(names: Sequence[str]) -> float:
    """Height that a row needs beyond its own, for names of several lines."""
    return LINE_IN * max((name.count("\n") for name in names), default=0)


def name_strips(ax: Axes, style: Style, names: Sequence[str]) -> None:
    """Rows with these names, from top to bottom, over faint upright rules."""
    style.clean(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", color=MUTED[0], alpha=0.2, linewidth=0.7)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.set_yticks(range(len(names)), names, color=INK[0])


def dots(ax: Axes, style: Style, position: int, values: np.ndarray, cells: pd.DataFrame) -> None:
    """The dots of one row, each with its method's colour and marker.

    Args:
        values: values of the cells, (n,).
        cells: with columns `method` and `cell_id`.
    """
    heights = spread_over(position, len(values))
    for method in dict.fromkeys(cells.method):
        here = (cells.method == method).to_numpy()
        (artist,) = ax.plot(
            values[here],
            heights[here],
            style.marker(method),
            color=style.colour(method),
            markersize=4,
            alpha=0.6,
            markeredgewidth=0,
            linestyle="",
            clip_on=False,
        )
        style.mark(artist, method, cells.cell_id[here])


def spread_over(position: int, count: int) -> np.ndarray:
    """The heights of the dots of one row, (count,): neighbours are separated, deterministically for each
    count."""
    return position + 0.26 * np.sin(np.arange(count) * 2.4)


def tick(ax: Axes, position: int, value: float) -> None:
    """A vertical tick at the median of a row's dots."""
    ax.vlines(value, position - 0.38, position + 0.38, color=INK[0], linewidth=1.4)


def percent_scale(
    ax: Axes,
    label: str,
    ends: tuple[float, float],
    marks: Iterable[float],
    *,
    linear: tuple[float, float] = LINEAR,
    signed: bool = False,
) -> None:
    """A horizontal axis in percent: linear near 0, then logarithmic.

    Args:
        marks: candidate tick labels; those within the range are shown.
        linear: see LINEAR.
        signed: positive numbers have a plus sign.
    """
    ax.set_xscale("symlog", linthresh=linear[0], linscale=linear[1])
    ax.set_xlim(ends)
    shown = _apart(ax, [mark for mark in marks if ends[0] <= mark < ends[1]])
    ax.set_xticks(
        shown, [f"{mark:+g} %" if signed and mark else "0" if signed else f"{mark:g} %" for mark in shown]
    )
    ax.minorticks_off()
    ax.set_xlabel(label, color=MUTED[0], fontsize=8)


def _apart(ax: Axes, marks: Iterable[float]) -> list[float]:
    """Those of the marks whose labels have room beside each other, from zero outwards, in ascending order."""
    kept: dict[float, float] = {}  # mark → its place in points
    for mark in sorted(marks, key=abs):
        place = float(ax.transData.transform((mark, 0.0))[0]) * POINTS / ax.figure.dpi
        if all(abs(place - other) >= LABEL_POINTS for other in kept.values()):
            kept[mark] = place
    return sorted(kept)


def deviation_scale(ax: Axes, label: str, values: pd.Series) -> None:
    """A horizontal axis for these signed deviations in percent: linear up to DEVIATION percent on either
    side, then logarithmic."""
    ends = min(float(values.min()) * 1.05, -DEVIATION * 1.1), max(float(values.max()) * 1.05, DEVIATION * 1.1)
    percent_scale(ax, label, ends, DEVIATIONS, linear=(DEVIATION, 1.5), signed=True)


def marked_rows(style: Style, names: Sequence[str], legend: Legend, unit: str) -> tuple[Canvas, Axes]:
    """A plot below a legend, with an empty dotted row for each setting, from top to bottom, and its unit
    below."""
    names = style.wrapped(names)
    left_in = style.names_in(names)
    rows_in = (MARKED_ROW_IN + more_lines_in(names)) * len(names)
    height_in = style.legend_in(legend) + 0.1 + rows_in + 0.55
    canvas = style.canvas(height_in)
    width_in = min(style.width_in - left_in - 0.2, WIDEST_IN)
    ax = canvas.add_axes(
        (left_in / style.width_in, 0.45 / height_in, width_in / style.width_in, rows_in / height_in)
    )
    style.clean(ax)
    ax.set_gid(panel_tag(unit, is_rows=True))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), names, color=INK[0])
    ax.grid(axis="y", color=RULE[0], linewidth=0.5, linestyle=(0, (1, 3)))
    ax.grid(axis="x", color=RULE[0], linewidth=0.7)
    ax.set_xlabel(unit, color=MUTED[0], fontsize=8, labelpad=4)
    style.legend(canvas, legend)
    return canvas, ax


def marks(
    ax: Axes,
    style: Style,
    position: int,
    values: np.ndarray,
    method: str,
    cell_ids: Iterable[str],
    *,
    hollow: bool = False,
) -> None:
    """The marks of a method in a row.

    Args:
        values: (n,).
        cell_ids: the cells of each mark, separated by spaces.
    """
    colour = style.colour(method)
    (artist,) = ax.plot(
        values,
        np.full(len(values), position),
        style.marker(method),
        color=colour,
        markersize=5,
        markeredgewidth=1.1,
        markerfacecolor="none" if hollow else colour,
        clip_on=False,
    )
    style.mark(artist, method, cell_ids)
