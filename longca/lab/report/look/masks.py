"""Drawings and definitions of masks for pages, from `static/masks.svg`, which `python -m tools.mask_pictures`
writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape
from pathlib import Path

FILE = Path(__file__).parent.parent / "static" / "masks.svg"
_SYMBOL = re.compile(
    r'<symbol id="m-(\w+)"[^>]*><title>(.*?)</title><desc>(.*?)</desc>(.*?)</symbol>', re.DOTALL
)


@dataclass(frozen=True)
class MaskDrawing:
    """The drawing of a mask, as the content of a symbol of 64 × 64 squares, and its definition."""

    name: str
    label: str
    definition: str
    content: str


def symbol(drawing: MaskDrawing) -> str:
    """The drawing as an SVG symbol with the id `m-NAME`."""
    from markupsafe import escape

    return (
        f'<symbol id="m-{drawing.name}" viewBox="-1 -1 66 66"><title>{escape(drawing.label)}</title>'
        f"<desc>{escape(drawing.definition)}</desc>{drawing.content}</symbol>"
    )


def mask_drawings(names: Iterable[str]) -> list[MaskDrawing]:
    """The drawings of these masks, in their order; masks of plug-ins have none."""
    drawings = {
        name: MaskDrawing(name, unescape(label), unescape(definition), content)
        for name, label, definition, content in _SYMBOL.findall(FILE.read_text(encoding="utf-8"))
    }
    return [drawings[name] for name in names if name in drawings]
