"""From a drawing to SVG: one form for a file of its own, one for inside the page, where colours follow the page's theme."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Protocol

from longca.report.style import RC, theme

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.report.style import Style

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TAG, _NUMBER = re.compile(r"<[^>]*>"), re.compile(r"-?\d+\.\d{3,}")
_FAMILY = re.compile(r"'DejaVu Sans'[^;\"]*")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_GROUP_ID, _EMPTY_GROUP = re.compile(r'<g id="[^"]*"'), re.compile(r"<g ?/>|<g></g>")
_MARKS = re.compile(r'<g( clip-path="[^"]*")?>((?:<use xlink:href="[^"]*" x="[^"]*" y="[^"]*" style="[^"]*"/>)+)</g>')
_STYLE = re.compile(r' style="([^"]*)"')
_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_SHEET = re.compile(r"<defs><style type=\"text/css\">.*?</style></defs>", re.DOTALL)
_FONT = re.compile(r" ?font-family: " + re.escape(SANS) + ";?")
_HEAD = re.compile(r"^.*?<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)


class Drawable(Protocol):
    """A figure of the report or of the study's page."""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas: ...


def draw(figure: Drawable, data: pd.DataFrame, style: Style) -> str:
    """A figure as an SVG document of its own, in light colours; the same data give the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with matplotlib.rc_context(RC):
        canvas = figure.draw(data, style)
        canvas.patch.set_visible(False)
        FigureCanvasSVG(canvas).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _compact(_FAMILY.sub(SANS, out.getvalue()))


def inline(text: str, name: str, label: str) -> str:
    """An SVG document as an element of the page: themed, labelled, its ids its own.

    Args:
        name: no other drawing on the page has it.
        label: what the drawing says, for those who cannot see it.
    """
    from markupsafe import escape

    text = _FONT.sub("", _REFERENCE.sub(lambda match: f"{match[1]}{name}-", _SHEET.sub("", text)))
    for light, (variable, _, _) in theme().items():
        text = text.replace(light, f"var(--{variable})")
    return _HEAD.sub(lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{escape(label)}">', text, count=1).strip()


def _compact(text: str) -> str:
    """The same drawing in fewer bytes: no comments, blanks and unused ids, two decimals, one style for equal marks."""
    text = re.sub(r">\s+<", "><", _METADATA.sub("", _COMMENT.sub("", text)))
    text = _TAG.sub(lambda tag: _NUMBER.sub(_short, re.sub(r"\s+", " ", tag[0])), text)
    text = _GROUP_ID.sub("<g", text)
    while (fewer := _EMPTY_GROUP.sub("", text)) != text:
        text = fewer
    return _MARKS.sub(_one_style, text) + "\n"


def _one_style(match: re.Match[str]) -> str:
    styles = set(_STYLE.findall(match[2]))
    return f'<g{match[1] or ""} style="{styles.pop()}">{_STYLE.sub("", match[2])}</g>' if len(styles) == 1 else match[0]


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
