"""Drawings as SVG: standalone files, and elements of the page, whose colours follow the theme."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from longca.lab.report.look.colours import theme
from longca.lab.report.look.style import RC

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TAG, _NUMBER = re.compile(r"<[^>]*>"), re.compile(r"-?\d+\.\d{2,}")
_FAMILY = re.compile(r"'DejaVu Sans'[^;\"]*")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_GROUP_ID = re.compile(r'<g id="(?!(?:points|panel|mask|title|legend):)[^"]*"')
_NAMED_GROUP = re.compile(r'<g id="(points|panel|mask|title|legend):([^"]*)"')
_CELLS = re.compile(r' data-cells="([^"]*)"')
_MASK = re.compile(r'<g data-mask="([^"/]*)/(\d+)">(<text [^>]*? x="(-?[\d.]+)" y="(-?[\d.]+)")')
_UPRIGHT = re.compile(r' transform="rotate\(-0 [^)]*\)"')
_SAME_PATHS = re.compile(r'<path d="[^"]*"( clip-path="[^"]*" style="[^"]*")/>(?:<path d="[^"]*"\1/>)+')
_BLANK = re.compile(r" ?\n| (?=[A-Za-z-])|(?<=[A-Za-z]) | $")
_OUTLINE = re.compile(r' d="([^"]*)"')
_LEGEND = re.compile(r' data-legend="([^"]*)"')
_EMPTY_GROUP = re.compile(r"<g ?/>|<g></g>")
_MARKS = re.compile(
    r'<g( clip-path="[^"]*")?>((?:<use xlink:href="[^"]*" x="[^"]*" y="[^"]*" style="[^"]*"/>)+)</g>'
)
_STYLE = re.compile(r' style="([^"]*)"')
_COLOURED_TEXT = re.compile(r"(<text [^>]*?)fill: (var\(--(?:k|s|spare)-[^)]*\))")
_ID, _REFERENCE = re.compile(r'\bid="([^"]+)"'), re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
_SHEET = re.compile(r"<defs><style type=\"text/css\">.*?</style></defs>", re.DOTALL)
_FONT = re.compile(r" ?font-family: " + re.escape(SANS) + ";?")
_HEAD = re.compile(r"^.*?<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)


class Drawable(Protocol):
    """A figure of a page."""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas: ...


def draw(figure: Drawable, data: pd.DataFrame, style: Style) -> str:
    """A figure as a standalone SVG document, in light colours; equal data give equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with matplotlib.rc_context(RC):
        canvas = figure.draw(data, style)
        canvas.patch.set_visible(False)
        FigureCanvasSVG(canvas).print_svg(
            out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return _compact(_FAMILY.sub(SANS, out.getvalue()))


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


@dataclass(frozen=True)
class Inline:
    """A drawing as an element of the page, with its legend."""

    svg: str
    keys: list[Key]


def inline(text: str, name: str, label: str, rows: Mapping[str, int] | None = None) -> Inline:
    """An SVG document as an element of the page: themed, labelled, with unique ids. Drawings of masks are the
    page's symbols `m-NAME`.

    Args:
        name: a short unique name on the page.
        label: a description of the drawing for screen readers.
        rows: cell → its row in the page's records, which replaces the cell id.
    """
    from markupsafe import escape

    legend = _LEGEND.search(text)
    keys = [_key(unescape(part)) for part in legend[1].split(",")] if legend and legend[1] else []
    text = _FONT.sub("", _SHEET.sub("", _LEGEND.sub("", text))).replace("xlink:href", "href")
    # short ids: a page has thousands of uses
    ids = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(_ID.findall(text)))}
    text = _REFERENCE.sub(lambda match: match[1] + ids.get(match[2], match[2]), text)
    for light, (variable, _, _) in theme().items():
        text = text.replace(light, f"var(--{variable})")
    text = _COLOURED_TEXT.sub(
        r"\1--own: \2", text
    )  # lines need less contrast than text: the style sheet mixes it with ink
    text = _CELLS.sub(lambda match: f' data-rows="{_rows(match[1], rows or {})}"' if match[1] else "", text)
    text = _MASK.sub(_with_picture, text)
    head = f'<svg viewBox="{{}}" role="img" aria-label="{escape(label)}">'
    return Inline(_HEAD.sub(lambda match: head.format(match[1]), text, count=1).strip(), keys)


def _key(text: str) -> Key:
    """An entry in the format of `Style.legend`."""
    label, marker, kind, colour = text.split("/")
    known = theme().get(colour)
    return Key(unquote(label), marker, kind, f"var(--{known[0]})" if known else colour)


def _rows(cells: str, rows: Mapping[str, int]) -> str:
    return ",".join(_rows_of_point(list(dict.fromkeys(point.split("+"))), rows) for point in cells.split(","))


def _rows_of_point(cells: list[str], rows: Mapping[str, int]) -> str:
    """The rows of a point's cells, "3+7"; "3+7/50" if only two of its 50 cells are on the page."""
    shown = [str(rows[cell]) for cell in cells if cell in rows]
    return "+".join(shown) + (f"/{len(cells)}" if shown and len(shown) < len(cells) else "")


def _with_picture(match: re.Match[str]) -> str:
    """The title of a panel, after the drawing of its mask."""
    name, shift, x, y = match[1], int(match[2]), float(match[4]), float(match[5])
    use = (
        f'<use href="#m-{name}" x="{x - shift:.1f}" y="{y - 8:.1f}" width="{shift - 3}" '
        f'height="{shift - 3}"/>'
    )
    return f'<g class="title">{use}{match[3]}'


def _named(match: re.Match[str]) -> str:
    """A group's name as attributes."""
    kind, value = match[1], match[2]
    if kind == "points":
        method, faint, cells = value.split(":")
        return (
            f'<g class="points{" faint" if faint else ""}" data-method="{escape(unquote(method))}" '
            f'data-cells="{cells}"'
        )
    if kind == "title":
        return '<g class="title"'
    return f'<g class="panel" data-panel="{value}"' if kind == "panel" else f'<g data-{kind}="{value}"'


def _compact(text: str) -> str:
    """The same drawing with fewer bytes: no comments and unused ids, one decimal, one path for equal bars,
    one style for equal marks."""
    text = re.sub(r">\s+<", "><", _METADATA.sub("", _COMMENT.sub("", text)))
    text = _UPRIGHT.sub("", text)
    text = _TAG.sub(lambda tag: _NUMBER.sub(_short, re.sub(r"\s+", " ", tag[0])), text)
    text = _GROUP_ID.sub("<g", text)
    while (fewer := _EMPTY_GROUP.sub("", text)) != text:
        text = fewer
    text = _OUTLINE.sub(lambda match: f' d="{_BLANK.sub("", match[1])}"', text)
    text = _SAME_PATHS.sub(lambda match: f'<path d="{"".join(_OUTLINE.findall(match[0]))}"{match[1]}/>', text)
    return _NAMED_GROUP.sub(_named, _MARKS.sub(_one_style, text)) + "\n"


def _one_style(match: re.Match[str]) -> str:
    styles = set(_STYLE.findall(match[2]))
    return (
        f'<g{match[1] or ""} style="{styles.pop()}">{_STYLE.sub("", match[2])}</g>'
        if len(styles) == 1
        else match[0]
    )


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".rstrip("0").rstrip(".")
