"""The views as data of the page's script, which lays them out: no text of the heat map, its switches and its
ranking is made in the browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.report.content.packing import packed, script_json
from longca.lab.report.decide.heat_map import ALONE, NOT_ASKED, HeatMap, Placed
from longca.lab.report.decide.views import DENSE, Decision
from longca.lab.report.look.labels import join
from longca.lab.report.series import DIRECTIONS
from longca.lab.store.table import NEW_TOKENS, NO_CONTEXT
from longca.lab.store.text import distinct_names, number

if TYPE_CHECKING:
    from longca.lab.report.series import Unit

_WHERE = "{method}, {mask}\n"
LOST_TIP = _WHERE + "{why}"
FOOT_TIP = "{method} {ran}\n{least}"
UNITS = {"": 1, "K": 1024, "M": 1024**2}  # of lengths
CAPTION = "{setting}: {meaning}"
SHOWS = {"percent": "% of best", "rate": "UNIT", "ms": "ms"}


def caption(view: HeatMap, decided: Decision, unit: Unit, show: str = "percent") -> str:
    """The setting of a heat map and the meaning of its numbers.

    Args:
        show: one of `SHOWS`.
    """
    return CAPTION.format(setting=described(view, decided), meaning=_meanings(view, unit)[show])


def _meanings(view: HeatMap, unit: Unit) -> dict[str, str]:
    return {
        "percent": "percent of the fastest method of each mask",
        "rate": f"{unit.name}{'' if view.ranks == ALONE else ' of each rank'}, median",
        "ms": "median milliseconds",
    }


def tip(entry: Placed, unit: Unit) -> str:
    """The template of the tip of a square like this one."""
    outcome = "no other method ran this mask" if entry.is_alone else "{percent} % of the best"
    tied = ", a tie in front" if entry.tied else ""
    speed = f"{{rate}} {unit.name} ({{low}}–{{high}}), {{ms}} ms"
    return f"{_WHERE}{speed}\n{outcome}{tied}; n = {{n}}[ over {{cells}} seeds]"


def views_json(decided: Decision, rows: Mapping[str, int], unit: Unit) -> str:
    """All views, for a script element.

    Args:
        rows: cell → its row in the page's records.
        unit: the unit of the page's rates.
    """
    methods = sorted({column.method for view in decided.views for column in view.columns})
    mask_at, method_at = (
        {name: index for index, name in enumerate(names)} for names in (decided.masks, methods)
    )
    states: dict[tuple[str, str], int] = {}  # (classes, tip) of squares
    reasons: dict[tuple[str, str], int] = {}  # (short, why) of those without a number
    sentences: dict[str, int] = {}  # that many views have

    def said(text: str) -> int:
        return sentences.setdefault(text, len(sentences))

    views = []
    for view in decided.views:
        entries = [
            (mask_at[mask], method_at[method], entry) for (mask, method), entry in view.entries.items()
        ]
        columns: dict[str, list[Any]] = {
            "mask": [mask for mask, _, _ in entries],
            "method": [method for _, method, _ in entries],
            "state": [
                states.setdefault((entry.frame, tip(entry, unit)), len(states)) for *_, entry in entries
            ],
            "row": [rows[entry.cell_id] for *_, entry in entries],
            **{name: [text(entry) for *_, entry in entries] for name, text in _texts(unit).items()},
        }
        views.append(
            {
                **view.switches._asdict(),
                "setting": described(view, decided),
                "meanings": [said(meaning) for meaning in _meanings(view, unit).values()],
                "masks": [mask_at[mask] for mask in view.masks],
                "verdicts": [view.verdicts[mask] for mask in view.masks],
                "not_ranked": [said(view.not_ranked(mask)) for mask in view.masks],
                "columns": [
                    [
                        method_at[column.method],
                        column.text,
                        column.note,
                        int(column.ran_all),
                        said(column.ran),
                        said(column.least),
                    ]
                    for column in view.columns
                ],
                "count": len(entries),
                "entries": packed(columns),
                "missing": [
                    [
                        mask_at[mask],
                        method_at[method],
                        reasons.setdefault((lost.short, lost.why), len(reasons)),
                    ]
                    for (mask, method) in view.missing
                    if method in method_at
                    for lost in [view.lost(mask, method)]
                ],
            }
        )
    default = decided.default
    return script_json(
        {
            "masks": decided.masks,
            "names": [decided.names[mask] for mask in decided.masks],
            "methods": methods,
            "switches": switches(decided.views),
            "shows": [[name, text.replace("UNIT", unit.name)] for name, text in SHOWS.items()],
            "states": [{"frame": frame, "tip": text} for frame, text in states],
            "reasons": [list(reason) for reason in reasons],
            "sentences": list(sentences),
            "lost_tip": LOST_TIP,
            "foot_tip": FOOT_TIP,
            "caption": CAPTION,
            "not_asked": NOT_ASKED,
            "copy_link": "Copy link",
            "show_label": "Show",
            "views": views,
            "default": {**default.switches._asdict(), "mask": default.opening},
        }
    )


def switches(views: list[HeatMap]) -> list[dict[str, Any]]:
    """The switches: name, label, [value, text] of each option in order, and the cost of another value, where
    the nearest view is searched."""
    gpus = distinct_names({view.switches.gpu for view in views})
    calls = {view.switches.heads for view in views}
    only_heads = all(re.fullmatch(r"\d+:\d+ heads", call) for call in calls)
    only_new = all(call == NO_CONTEXT or re.fullmatch(rf"\w+{NEW_TOKENS}", call) for call in calls)
    choices: list[tuple[str, str, int, Callable[[Any], Any], Callable[[Any], str]]] = [
        ("family", "Masks", 32, lambda value: value != DENSE, str),
        ("gpu", "GPU", 16, str, gpus.__getitem__),
        ("seqlen", "Length", 1, int, format_length),
        (
            "heads",
            "Heads" if only_heads else "New tokens" if only_new else "Setting",
            4,
            _by_numbers,
            lambda value: value.removesuffix(" heads" if only_heads else NEW_TOKENS if only_new else ""),
        ),
        ("corpus", "Documents of", 2, str, str),
        ("window", "Window", 2, _by_numbers, _length),
        ("ranks", "Ranks", 8, lambda value: 0 if value == ALONE else int(value), str),
        ("direction", "Direction", 16, list(DIRECTIONS).index, DIRECTIONS.__getitem__),
    ]
    return [
        {
            "name": name,
            "label": label,
            "cost": cost,
            "options": [
                [value, text(value)]
                for value in sorted({getattr(view.switches, name) for view in views} - {""}, key=order)
            ],
        }
        for name, label, cost, order, text in choices
    ]


def _texts(unit: Unit) -> dict[str, Callable[[Placed], str]]:
    return {
        "text": lambda entry: entry.text,
        "strength": lambda entry: str(entry.strength),
        "rate": lambda entry: number(entry.tflops * unit.factor),
        "low": lambda entry: number(entry.low * unit.factor),
        "high": lambda entry: number(entry.high * unit.factor),
        "ms": lambda entry: number(entry.ms),
        "percent": lambda entry: entry.percent,
        "rank": lambda entry: entry.rank,
        "margin": lambda entry: entry.margin,
        "n": lambda entry: str(entry.num_samples),
        "cells": lambda entry: str(entry.num_cells) if entry.num_cells > 1 else "",
    }


def _by_numbers(text: str) -> tuple[tuple[int, ...], str]:
    numbers = re.findall(r"(\d+)([KM]?)", text)
    return tuple(int(digits) * UNITS[unit] for digits, unit in numbers), text


def _length(text: str) -> str:
    return format_length(int(text)) if text.isdigit() else text


def described(view: HeatMap, decided: Decision) -> str:
    """The setting of a view: "32K tokens · 64:8 heads · documents of pile · window 1K · backward"."""
    ranks = (
        f"{view.ranks} ranks × {format_length(view.seqlen // int(view.ranks))}"
        if view.ranks != ALONE
        else "kernels alone"
        if any(other.ranks != ALONE for other in decided.views)
        else ""
    )
    switches = view.switches
    windows = " and ".join(map(_length, [switches.window] if switches.window else view.windows))
    return join(
        f"{format_length(view.seqlen)} tokens",
        ranks,
        switches.gpu,
        switches.heads,
        f"documents of {' and '.join(view.corpora)}" if view.corpora else "",
        f"window {windows}" if windows else "",
        DIRECTIONS[view.direction],
    )
