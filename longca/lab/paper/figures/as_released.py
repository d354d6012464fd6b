"""Throughput of the rows "as released" and of the rows without the defect: a dumbbell for each call."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.paper.contract import PaperFigure
from longca.lab.paper.repairs import REPAIRS
from longca.lab.report.look import BAD, GROUND, INK, MUTED, NARROW_IN, POINTS, RULE, panel_tag
from longca.lab.report.questions.as_released import effect, ordinal, pairs, rank_change, slowdown
from longca.lab.store.text import number, plural, short_device

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look import Legend, Style

ROW_IN = 0.2
HEAD_IN = 0.42
FOOT_IN = 0.6
NAME_IN = 1.1
NOTE_IN = 1.5
COLUMNS = 2
LEGEND: Legend = [
    ("as released", {"color": MUTED[0], "linestyle": "", "marker": "o", "markerfacecolor": "none"}),
    ("without the defect", {"color": MUTED[0], "linestyle": "", "marker": "o"}),
    ("no number", {"color": MUTED[0], "linestyle": "", "marker": "x", "markeredgewidth": 1.5}),
]


class AsReleased(PaperFigure):
    label = "As released, and without the defect"
    section = "released"
    number = "defects F5, F6, F7 and F17"
    order = 10
    caption = (
        "Throughput of a kernel with one defect of the study's released code, and of the same kernel "
        "without it: same masks, timer and checks. At the right, the time as released over the time "
        "without. Where throughput as released would have another place among all kernels measured under "
        "the same mask, length, heads and pass, that place → the one without the defect, if the two are "
        "told apart (repeats of identical cells differ by less). Lines through points reach from the first "
        "to the third quartile."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return pairs(table)

    def title(self, data: pd.DataFrame) -> str:
        lost = int(((data.status_released != "ok") & (data.status_without == "ok")).sum())
        parts = slowdown(data)
        if lost:
            parts.append(f"{plural(lost, 'call')} of {len(data)} fail with them alone")
        changes: pd.DataFrame = data.loc[data.rank_changes]
        if len(changes):
            steps = (
                (changes.rank_released.fillna(changes.num_ranked + 1) - changes.rank_without)
                .abs()
                .astype(float)
            )
            have = "has" if len(changes) == 1 else "have"
            parts.append(
                f"{plural(len(changes), 'call')} {have} another rank: "
                f"{rank_change(changes.loc[steps.idxmax()])}"
            )
        return "; ".join(parts)

    def effects(self, data: pd.DataFrame) -> dict[int, str]:
        return {
            repair.number: effect(of_kernel)
            for repair in REPAIRS
            if len(of_kernel := data.loc[data.kernel == repair.kernel])
        }

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas:
        groups = [
            (repair.kernel, of_kernel)
            for repair in REPAIRS
            if len(of_kernel := data.loc[data.kernel == repair.kernel])
        ]
        lines = [_lines(of_kernel) for _, of_kernel in groups]
        places, heights = _packed(list(map(len, lines)), COLUMNS)
        narrow_places, narrow_heights = _packed(list(map(len, lines)), 1)
        top = style.legend_in(LEGEND) + 0.1
        height = top + max(heights)
        canvas = style.canvas(height)
        column_in = style.width_in / len(heights)
        limits = _limits(data)
        for (kernel, of_kernel), rows, (column, above), (_, narrow_above) in zip(
            groups, lines, places, narrow_places, strict=True
        ):
            rows_in = ROW_IN * len(rows)
            ax = canvas.add_axes(
                (
                    (column * column_in + NAME_IN) / style.width_in,
                    1 - (top + above + HEAD_IN + rows_in) / height,
                    (NARROW_IN - NAME_IN - NOTE_IN) / style.width_in,
                    rows_in / height,
                )
            )
            _panel(ax, style, kernel, of_kernel, rows, limits)
            shift = (-column * column_in * POINTS, (narrow_above - above) * POINTS)
            ax.set_gid(panel_tag(kernel, shift=shift if style.on_page else (0.0, 0.0)))
        style.legend(canvas, LEGEND, (NARROW_IN * POINTS, (top + max(narrow_heights)) * POINTS))
        return canvas


def _packed(counts: list[int], columns: int) -> tuple[list[tuple[int, float]], list[float]]:
    """(column, inches above it) of panels with so many lines, each in the column that is the shortest so far;
    and the columns' heights."""
    heights = [0.0] * columns
    places = []
    for count in counts:
        column = heights.index(min(heights))
        places.append((column, heights[column]))
        heights[column] += HEAD_IN + ROW_IN * count + FOOT_IN
    return places, heights


def _lines(of_kernel: pd.DataFrame) -> list[str | int]:
    """The lines of a panel: a mask's name, then the number of each of its rows."""
    lines: list[str | int] = []
    for number_of_row, mask in enumerate(of_kernel.mask_label):
        if mask not in lines:
            lines.append(str(mask))
        lines.append(number_of_row)
    return lines


def _limits(data: pd.DataFrame) -> tuple[float, float]:
    """The limits of the horizontal axis, common to all panels; its left end has room for rows without a
    number."""
    rates = [float(rate) for word in ("released", "without") for rate in data[f"tflops_{word}"].dropna()]
    return (min(rates) / 2, max(rates) * 1.3) if rates else (0.1, 1.0)


def _panel(
    ax: Axes,
    style: Style,
    kernel: str,
    data: pd.DataFrame,
    lines: list[str | int],
    limits: tuple[float, float],
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    style.clean(ax)
    style.title(ax, kernel, ", ".join(repair.name for repair in REPAIRS if repair.kernel == kernel), 2)
    ax.set(xscale="log", xlim=limits, ylim=(len(lines) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color=RULE[0], linewidth=0.7)
    ax.xaxis.set_major_locator(LogLocator(numticks=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("TFLOP/s", color=MUTED[0], fontsize=8, labelpad=3)
    rows: list[Any] = list(data.itertuples())
    names = _row_names(rows)
    ticks: dict[int, str] = {}
    for at, line in enumerate(lines):
        if isinstance(line, str):
            _beside(ax, at, 0, line, MUTED[0])
            continue
        row = rows[line]
        ticks[at] = names[line]
        _dumbbell(ax, style, at, row, limits[0])
        _beside(ax, at, 1, _note(row), INK[0] if row.rank_changes else MUTED[0])
    ax.set_yticks(list(ticks), list(ticks.values()), color=INK[0])
    ax.tick_params(axis="y", pad=8)  # beside the crosses at the edge


def _row_names(rows: list[Any]) -> list[str]:
    """Length and direction of each row: "8K fwd", with the device and the heads where a mask has several such
    rows."""
    names = [f"{format_length(int(row.seqlen))} {row.direction}" for row in rows]
    for more in ([short_device(row.device) for row in rows], [row.heads for row in rows]):
        count = Counter((row.mask_label, name) for row, name in zip(rows, names, strict=True))
        names = [
            f"{name} {text}" if count[row.mask_label, name] > 1 else name
            for row, name, text in zip(rows, names, more, strict=True)
        ]
    return names


def _beside(ax: Axes, at: int, edge: int, text: str, colour: str) -> None:
    """A note on one line: at the left edge inside the panel, or at its right edge beside it."""
    ax.annotate(
        text,
        (edge, at),
        (6 if edge else 0, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=colour,
    )


def _dumbbell(ax: Axes, style: Style, at: int, row: Any, bottom: float) -> None:
    """Both throughputs of a call with their quartiles; what has no number is a cross at the left edge."""
    kernel = row.kernel
    colour = style.colour(row.kernel)
    is_ok = {word: getattr(row, f"status_{word}") == "ok" for word in ("released", "without")}
    rates = {word: getattr(row, f"tflops_{word}") if is_ok[word] else bottom for word in is_ok}
    style.mark(
        ax.plot(
            list(rates.values()), [at, at], color=colour, linewidth=2.2, alpha=0.35, solid_capstyle="butt"
        )[0],
        kernel,
    )
    for (word, rate), cell_id in zip(rates.items(), row.cell_ids.split(), strict=True):
        fill = GROUND[0] if word == "released" else colour
        if is_ok[word]:
            time, ends = (
                getattr(row, f"time_ms_{word}"),
                (getattr(row, f"time_ms_{end}_{word}") for end in ("high", "low")),
            )
            style.mark(
                ax.hlines(at, *(rate * time / end for end in ends), color=colour, linewidth=1.1), kernel
            )
            (mark,) = ax.plot(
                rate,
                at,
                style.marker(kernel),
                color=colour,
                markersize=5,
                markerfacecolor=fill,
                clip_on=False,
            )
        else:
            (mark,) = ax.plot(rate, at, "x", color=BAD[0], markersize=5, markeredgewidth=1.5, clip_on=False)
        style.mark(mark, kernel, [cell_id])


def _note(row: Any) -> str:
    """The ratio, or what failed; and the ranks where they change."""
    failed = (
        row.status_released
        if row.status_released != "ok"
        else f"{row.status_without} without"
        if row.status_without != "ok"
        else ""
    )
    text = failed or f"{number(float(row.ratio), 3)}×"
    if not row.rank_changes:
        return text
    return (
        f"{text} · {ordinal(int(row.rank_released)) if row.status_released == 'ok' else '–'} → "
        f"{ordinal(int(row.rank_without))}"
    )
