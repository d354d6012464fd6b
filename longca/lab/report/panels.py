"""Small multiples: one panel for each mask, one line for each method, on a common scale."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import by_numbers
from longca.lab.report.findings import leaders
from longca.lab.report.look.labels import join, short_labels
from longca.lab.report.look.style import MUTED, POINTS
from longca.lab.report.look.tags import title_tag
from longca.lab.report.series import POINT, mask_order
from longca.lab.store.text import number
from longca.lab.studies.samples import NOISY

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

LOG_FROM = 60  # ratio of largest to smallest value above which a linear scale would hide small values
MOST_COLOURS = 6  # with more methods, the four best are coloured and the others grey
FEWEST_FOR_LINES = 3  # values of x in a panel: a line through two would claim what lies between them
MOST_LABELS = 4  # methods with names at the ends of their lines
MOST_LABELLED = 4  # panels in a row with such names
PANEL = ["mask", "detail"]  # title and second line
MASK = ["mask", "mask_label", "setting", "detail"]  # columns that identify a mask's panel


def in_panel_order(data: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of panels: masks from dense to sparse, then settings."""
    order = {label: index for index, label in enumerate(mask_order(table))}
    keys: dict[str, Callable[[str], Any]] = {"mask_label": order.__getitem__, "detail": by_numbers}
    return data.sort_values(
        ["mask_label", "detail", "method", *(["direction"] if "direction" in data else [])],
        kind="stable",
        key=lambda column: column.map(keys[column.name]) if column.name in keys else column,
        ignore_index=True,
    )


def draw_panels(
    data: pd.DataFrame,
    style: Style,
    *,
    x: str,
    x_text: Callable[[Any], str],
    unit: str,
    x_log: bool = True,
    y_log: bool = False,
    per_row: int = 5,
    lowest_is_best: bool = False,
) -> Canvas:
    """Panels of points from `longca.lab.report.series.points`, with columns `method`, `x` and optionally
    `direction` (bwd is dashed).

    Args:
        unit: unit of the values, shown above the first panel.
        y_log: use a logarithmic scale if values differ strongly; otherwise the scale begins at zero.
        lowest_is_best: True if low values are best; with many methods, only the best are coloured.
    """
    panels = list(data.groupby(PANEL, sort=False))
    both = "direction" in data and data.direction.nunique() > 1
    lines = 2 if data.detail.any() else 1
    if data.method.nunique() > MOST_COLOURS:
        inverse = 1 / data.value.clip(lower=1e-9)
        judged = data.assign(value=inverse, low=inverse, high=inverse) if lowest_is_best else data
        style = style.with_best(leaders(judged, [*PANEL, x, *(["direction"] if "direction" in data else [])]))
    labels = _labels(
        [name for name in style.methods if name in set(data.method) and not style.is_faint(name)]
    )
    seconds = short_labels(map(str, data.detail))
    joined = [rows[x].nunique() >= FEWEST_FOR_LINES for _, rows in panels]
    canvas, axes = style.panels(
        [join(str(name), str(second), unit) for (name, second), _ in panels],
        per_row=min(per_row, MOST_LABELLED) if labels else per_row,
        title_lines=lines,
        title_chars=max(map(len, seconds.values())),
        label_chars=max(map(len, labels.values()), default=0),
        legend=style.legend_of(data, dots=not all(joined)),
    )
    scale = _Scale(data, y_log)
    ticks = _ticks(sorted(data[x].unique()), 4, x_log)
    for ax, ((name, second), rows), is_joined in zip(axes, panels, joined, strict=True):
        style.title(ax, str(name), seconds[str(second)], lines, mask=str(name))
        scale.apply(ax)
        if x_log:
            ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [x_text(tick) for tick in ticks])
        ax.minorticks_off()
        _limits(ax, data[x].to_numpy(float), x_log)
        failures = list(dict.fromkeys(rows.method[rows.status != "ok"]))
        for (method, *direction), line in rows.groupby(
            ["method", "direction"] if both else ["method"], sort=False
        ):
            offset = failures.index(method) - (len(failures) - 1) if method in failures else 0
            ordered = line.sort_values(x)
            _draw_line(
                ax,
                style,
                method,
                ordered,
                x,
                dashed=direction == ["bwd"],
                joined=is_joined and (line.status == "ok").sum() >= FEWEST_FOR_LINES,
                offset=offset,
            )
        style.label_ends(ax, _ends(rows.loc[rows.direction != "bwd"] if both else rows, labels, x))
    if axes:
        note = axes[0].annotate(
            unit,
            (0, 1),
            (-32, 27 if lines == 2 else 17),
            xycoords="axes fraction",
            textcoords="offset points",
            color=MUTED[0],
            fontsize=8,
            va="bottom",
        )
        note.set_gid(title_tag())
    return canvas


def _labels(methods: list[str]) -> dict[str, str]:
    """The few methods with labels at the ends of their lines, and the labels, without a kernel that all
    share."""
    if not 0 < len(methods) <= MOST_LABELS:
        return {}
    kernels = {method.partition("+")[2] for method in methods}
    return {method: method.partition("+")[0] if len(kernels) == 1 else method for method in methods}


def _ends(rows: pd.DataFrame, labels: dict[str, str], x: str) -> list[tuple[str, str, float]]:
    ends = (
        rows.loc[(rows.status == "ok") & rows.method.isin(list(labels))]
        .sort_values(x)
        .groupby("method", sort=False)
        .value.last()
    )
    return [(str(method), labels[str(method)], float(value)) for method, value in ends.items()]


class _Scale:
    """A common vertical scale for all panels."""

    def __init__(self, data: pd.DataFrame, log: bool) -> None:
        values = data.value.dropna().to_numpy(float)
        values = values[values > 0]
        self.top = float(data.high.max()) if len(values) else 1.0
        self.bottom = float(values.min()) if len(values) else 0.1
        self.log = log and self.top / self.bottom > LOG_FROM

    def apply(self, ax: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

        if self.log:
            ax.set_yscale("log")
            ax.set_ylim(self.bottom / 1.6, self.top * 1.4)
            ax.yaxis.set_major_locator(LogLocator(numticks=5))
        else:
            ax.set_ylim(0, self.top * 1.06)
            ax.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=3))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    """A short text: 0.5, 20, 1,000."""
    return f"{value:,.0f}" if value >= 10 else number(value, 2).rstrip("0").rstrip(".") or "0"


def _draw_line(
    ax: Axes,
    style: Style,
    method: str,
    line: pd.DataFrame,
    x: str,
    *,
    dashed: bool,
    joined: bool,
    offset: int,
) -> None:
    ok = line[line.status == "ok"]
    failed = line[line.status != "ok"]
    is_noisy = (ok.noise if "noise" in ok else ok.value * 0).to_numpy(float) > NOISY
    if not joined or (~is_noisy).sum() < FEWEST_FOR_LINES:
        is_noisy[:] = False
    steady = ok[~is_noisy]
    for run in runs_of_protocols(steady) if joined else [steady]:
        style.line(ax, method, run, x, dashed=dashed, joined=joined)
    if is_noisy.any():  # a line through it would dip
        style.line(ax, method, ok[is_noisy], x, dashed=dashed, joined=False)
    if len(failed):
        from matplotlib.transforms import ScaledTranslation

        # so that two failures do not overlap
        aside = ScaledTranslation(6 * offset / POINTS, 0, ax.figure.dpi_scale_trans)
        (marks,) = ax.plot(
            failed[x].to_numpy(float),
            np.zeros(len(failed)),
            "x",
            color=style.colour(method),
            markersize=5,
            markeredgewidth=1.5,
            transform=ax.get_xaxis_transform() + aside,
            clip_on=False,
            zorder=5,
        )
        style.mark(marks, method, failed.cell_ids)


def runs_of_protocols(line: pd.DataFrame) -> list[pd.DataFrame]:
    """The points of a line in their order, apart where calls with rests of the GPU follow calls without: a
    line through both would rise or fall where nothing but the protocol changes."""
    if POINT not in line or not len(line):
        return [line]
    rests = np.array(
        [point is not None and all(of.rests for of in point.measurements) for point in line[POINT]]
    )
    ends = [0, *(np.flatnonzero(rests[1:] != rests[:-1]) + 1).tolist(), len(line)]
    return [line.iloc[start:end] for start, end in pairwise(ends)]


def _limits(ax: Axes, x: np.ndarray, log: bool) -> None:
    low = x.min()
    high = x.max()
    if log:
        margin = 1.12 if high == low else (high / low) ** 0.06
        ax.set_xlim(low / margin, high * margin)
    else:
        margin = 0.05 if high == low else (high - low) * 0.07
        ax.set_xlim(low - margin, high + margin)


def _ticks(values: list[Any], most: int, log: bool) -> list[Any]:
    """At most this many of the values, including the first and the last, about evenly spaced on the axis."""
    if len(values) <= most:
        return values
    places = np.log2(values) if log else np.asarray(values, float)
    targets = np.linspace(places[0], places[-1], most)
    return [
        values[index] for index in dict.fromkeys(int(np.abs(places - target).argmin()) for target in targets)
    ]
