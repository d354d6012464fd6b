"""Tags of drawings: what an artist shows, carried through matplotlib as the id of its group (`set_gid`). The
finished SVG has them as attributes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_SIGN = "{"  # matplotlib's own ids never begin with it


@dataclass(frozen=True)
class Key:
    """One entry of a drawing's legend."""

    label: str
    marker: str
    """matplotlib's name of the marker; "" for a line without marks"""
    kind: str
    """"" for a method, "faint" for a grey method, "sign" for directions, failures and other entries"""
    colour: str = ""
    """colour of a sign, as CSS; "" without one"""
    is_hollow: bool = False
    """a sign's marker is an outline"""
    is_dashed: bool = False
    """a sign's line is dashed"""


def points_tag(method: str, cells: Iterable[str] = (), *, faint: bool = False) -> str:
    """The marks of a method.

    Args:
        cells: for each mark, in order, its cell ids, separated by spaces.
        faint: the method is drawn in grey.
    """
    return _tag("points", method=method, faint=faint, cells=[ids.split() for ids in cells])


def panel_tag(title: str, *, is_rows: bool = False, shift: tuple[float, float] = (0.0, 0.0)) -> str:
    """A panel, which the page can enlarge under this title.

    Args:
        is_rows: it is a plot of dots in rows (`longca.lab.report.look.dot_rows`).
        shift: how far it moves in narrow windows, in points (x, y).
    """
    return _tag("panel", title=title, rows=is_rows, shift=shift)


def rows_tag() -> str:
    """A plot of dots in rows that is no panel."""
    return _tag("rows")


def title_tag(mask: str = "", shift: float = 0.0) -> str:
    """A title above a panel.

    Args:
        mask: its mask, if the page draws it before the title.
        shift: points by which the title makes room for that drawing.
    """
    return _tag("title", mask=mask, shift=shift)


def legend_tag(keys: Iterable[Key], size: tuple[float, float] | None = None) -> str:
    """The entries of the legend, for a page, which shows them itself.

    Args:
        size: width and height in points in narrow windows, of a drawing whose panels move there.
    """
    return _tag("legend", keys=[vars(key) for key in keys], size=size)


def read_tag(group_id: str) -> dict[str, Any]:
    """The tag in the id of a group; empty for an id of matplotlib's."""
    return json.loads(group_id) if group_id.startswith(_SIGN) else {}


def _tag(kind: str, **values: Any) -> str:
    return json.dumps({"kind": kind, **values}, ensure_ascii=False)
