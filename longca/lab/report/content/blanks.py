"""Blanks of figures: why a method of a figure has no mark where others have one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.report.decide.heat_map import SHORT_STATUS
from longca.lab.report.look.labels import SEPARATOR, join
from longca.lab.report.panels import PANEL
from longca.lab.report.series import DIRECTIONS
from longca.lab.store.text import NONE, distinct_names
from longca.lab.studies import SETTING_AXES

if TYPE_CHECKING:
    import pandas as pd

NOT_ASKED = "not asked"
WITHOUT = "measured, but not shown here"
ALL_PANELS = "all panels"
ROW = ["place"]  # of figures that have a row for each setting, with a mark of each method
CALL = ("mask", "mask_params", "corpus", *SETTING_AXES, "device", "input_values", "sustained")
AXES = ("direction", "seqlen", "world", "density", "mask_density_asked")
"""columns in which the marks of a panel differ"""


def words_text(noun: str, statuses: Iterable[str]) -> str:
    """The words in place of numbers: "Fields without a number say why when they are pointed at: “no” is
    unsupported, empty is not asked."

    Args:
        noun: what has no number, in the plural.
        statuses: those that occur.
    """
    marks = {status: SHORT_STATUS.get(status, NONE) for status in statuses if status != NOT_ASKED}
    words = dict.fromkeys(f"“{mark}” is {status}" for status, mark in marks.items() if mark != status)
    meanings = ", ".join([*words, "empty is not asked"])
    return f"{noun} without a number say why when they are pointed at: {meanings}."


@dataclass(frozen=True)
class Blank:
    """The places without a mark of one method for one reason."""

    method: str
    why: str
    """ "not asked", or the status and the recorded reason"""
    where: str
    """the panels, with the lengths if it is only some"""
    panels: tuple[int, ...]
    """places of the panels in the figure"""


class Outcomes:
    """The outcomes of a table's cells, by method and call."""

    def __init__(self, table: pd.DataFrame) -> None:
        calls = list(zip(*(table[name].tolist() for name in CALL), strict=True))
        self._devices = sorted(set(table.device) - {""})
        self._calls = dict(zip(table.cell_id, calls, strict=True))
        self._known: dict[tuple[str, tuple[Any, ...]], str] = {}
        for method, call, status, reason in zip(table.method, calls, table.status, table.reason, strict=True):
            why = WITHOUT if status == "ok" else f"{status}: {reason}" if reason else str(status)
            self._known.setdefault((method, call), why)

    def blanks(self, data: pd.DataFrame) -> tuple[Blank, ...]:
        """The blanks of a figure; none for figures without panels, or rows, in which methods are compared.

        Args:
            data: the figure's rows. A mark is a row, be it of a number or of a failure; it names its cells.
        """
        keys = PANEL if set(PANEL) <= set(data) else ROW
        ids = "cell_ids" if "cell_ids" in data else "cell_id"
        if not {*keys, "method", ids} <= set(data):
            return ()
        methods = list(dict.fromkeys(data.method))
        panels = {key: place for place, key in enumerate(dict.fromkeys(_keys(data, keys)))}
        axes = [name for name in AXES if name in data]
        marks: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, str]]] = {key: {} for key in panels}
        columns = zip(_keys(data, keys), _keys(data, axes), data.method, data[ids], strict=True)
        for panel, at, method, cell_ids in columns:
            marks[panel].setdefault(at, {})[method] = cell_ids
        missing: dict[tuple[str, str], dict[tuple[Any, ...], list[tuple[Any, ...]]]] = {}
        for panel, of_panel in marks.items():
            for at, here in of_panel.items():
                cell_ids = " ".join(here.values())
                for method in methods:
                    if method not in here:
                        missing.setdefault((method, self.why(method, cell_ids)), {}).setdefault(
                            panel, []
                        ).append(at)
        order = {method: place for place, method in enumerate(methods)}
        return tuple(
            Blank(
                method,
                why,
                self._short(_where(places, marks, axes)),
                tuple(panels[panel] for panel in places),
            )
            for (method, why), places in sorted(
                missing.items(), key=lambda item: (order[item[0][0]], item[0][1])
            )
        )

    def _short(self, text: str) -> str:
        for device, name in distinct_names(self._devices).items():
            text = text.replace(device, name)
        return text

    def why(self, method: str, cell_ids: str) -> str:
        """Why a method has no number where others have these cells, divided by blanks."""
        calls = {self._calls[cell] for cell in cell_ids.split() if cell in self._calls}
        known = {self._known[method, call] for call in calls if (method, call) in self._known}
        return min(known) if known else NOT_ASKED


def _keys(data: pd.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(data[name].tolist() for name in names), strict=True)) if names else [()] * len(data)


def _where(
    places: dict[tuple[Any, ...], list[tuple[Any, ...]]],
    marks: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, str]]],
    axes: Sequence[str],
) -> str:
    """ "full, causal (24K, 40K)", or "H100 and H200: full, causal (24K, 40K)"."""
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for panel, ats in places.items():
        whole = len(ats) == len(marks[panel])
        parts.setdefault("" if whole else _lengths(ats, marks[panel], axes), []).append(panel)
    return "; ".join(
        f"{names}{f' ({lengths})' if lengths else ''}"
        for lengths, panels in parts.items()
        for names in ([ALL_PANELS] if len(panels) == len(marks) > 1 else _names(panels))
    )


def _names(panels: Iterable[tuple[Any, ...]]) -> list[str]:
    """The names of panels, those of the same GPUs, which end their details, together: "H100 and H200: full,
    causal"."""
    ends: dict[str, list[str]] = {}
    for first, *details in panels:
        detail, _, end = join(*map(str, details)).rpartition(SEPARATOR)
        ends.setdefault(join(str(first), detail), []).append(end)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, own in ends.items():
        alike.setdefault(tuple(own), []).append(name)
    return [
        f"{' and '.join(own)}: {', '.join(names)}" if any(own) else ", ".join(names)
        for own, names in alike.items()
    ]


def _lengths(ats: Iterable[tuple[Any, ...]], every: Iterable[tuple[Any, ...]], axes: Sequence[str]) -> str:
    """Those of the axes in which the marks of the panel differ: "24K, 40K"."""
    texts = []
    marks = list(every)
    for place, name in enumerate(axes):
        if len({at[place] for at in marks}) > 1:
            values = sorted({at[place] for at in ats})
            texts.append(", ".join(_text(name, value) for value in values))
    return join(*texts)


def _text(axis: str, value: Any) -> str:
    if axis == "seqlen":
        return format_length(int(value))
    if axis == "world":
        return f"{value} ranks"
    return DIRECTIONS.get(value, f"{value:g}" if isinstance(value, float) else str(value))
