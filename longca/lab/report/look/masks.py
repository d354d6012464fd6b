"""Drawings and definitions of masks for pages, from `static/masks.svg`, which `python -m tools.mask_pictures`
writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from longca.lab.report.look.tree import parsed, text_of

FILE = Path(__file__).parent.parent / "static" / "masks.svg"
PREFIX = "m-"  # of the ids of symbols


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
        f'<symbol id="{PREFIX}{drawing.name}" viewBox="-1 -1 66 66"><title>{escape(drawing.label)}</title>'
        f"<desc>{escape(drawing.definition)}</desc>{drawing.content}</symbol>"
    )


def mask_drawings(names: Iterable[str]) -> list[MaskDrawing]:
    """The drawings of these masks, in their order; masks of plug-ins have none."""
    symbols = (_drawing(part) for part in parsed(FILE.read_text(encoding="utf-8")).iter("symbol"))
    drawings = {drawing.name: drawing for drawing in symbols}
    return [drawings[name] for name in names if name in drawings]


def _drawing(part: Element) -> MaskDrawing:
    shapes = "".join(text_of(shape) for shape in part if shape.tag not in ("title", "desc"))
    return MaskDrawing(
        part.attrib["id"].removeprefix(PREFIX), part.findtext("title", ""), part.findtext("desc", ""), shapes
    )
