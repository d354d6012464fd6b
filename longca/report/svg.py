"""From a drawing to SVG: one form for a file of its own, one for inside the page, where colours follow the page's theme."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from longca.report.style import RC, theme

if TYPE_CHECKING:
    import pandas as pd

    from longca.report.contract import Figure
    from longca.report.style import Style

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_TAG, _NUMBER = re.compile(r"<[^>]*>"), re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"(font: [^;\"]*?)'DejaVu Sans'[^;\"]*")
_GROUP_ID = re.compile(r'<g id="(?!legend)[a-zA-Z_]+\d*(?:_\d+)*">')
_ANY_ID = re.compile(r'(\bid="|href="#|url\(#)')
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_DEFAULT_STYLE = re.compile(r"\s*<defs>\s*<style type=\"text/css\">.*?</style>\s*</defs>", re.DOTALL)
_HEAD = re.compile(r"^.*?<svg[^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)


def draw(figure: Figure, data: pd.DataFrame, style: Style) -> str:
    """A figure as an SVG document of its own, in light colours; the same data give the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with matplotlib.rc_context(RC):
        canvas = figure.draw(data, style)
        canvas.patch.set_facecolor("none")
        FigureCanvasSVG(canvas).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = _COMMENT.sub("", _METADATA.sub("", out.getvalue()))
    text = _TAG.sub(lambda tag: _NUMBER.sub(_short, tag[0]), text)
    text = _FONT.sub(lambda match: match[1] + SANS, text)
    return _GROUP_ID.sub("<g>", text)


def inline(text: str, name: str, label: str) -> str:
    """An SVG document as an element of the page: themed, labelled, its ids its own.

    Args:
        name: no other drawing on the page has it.
        label: what the drawing says, for those who cannot see it.
    """
    from markupsafe import escape

    text = _ANY_ID.sub(lambda match: f"{match[1]}{name}-", _DEFAULT_STYLE.sub("", text))
    text = text.replace(f"font: {SANS}", "").replace(SANS, "var(--sans)")
    for light, (variable, _, _) in theme().items():
        text = text.replace(light, f"var(--{variable})")
    return _HEAD.sub(lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{escape(label)}">', text, count=1).strip()


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
