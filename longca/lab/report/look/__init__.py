"""Visual styles by name: a colour and a marker for each kernel and strategy, a drawing for each mask."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report.look.colours import (
        BAD,
        GROUND,
        HEAT,
        INK,
        MARKERS,
        MUTED,
        RULE,
        STRATEGIES,
        looks,
        theme,
    )
    from longca.lab.report.look.grid import NARROW_IN, POINTS
    from longca.lab.report.look.labels import join
    from longca.lab.report.look.masks import MaskDrawing, mask_drawings
    from longca.lab.report.look.style import Legend, Style
    from longca.lab.report.look.svg import Inline, inline, short_name, with_shared_styles
    from longca.lab.report.look.tags import panel_tag
    from longca.lab.report.look.template import page_templates, static_text
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "BAD",
    "GROUND",
    "HEAT",
    "INK",
    "MARKERS",
    "MUTED",
    "NARROW_IN",
    "POINTS",
    "RULE",
    "STRATEGIES",
    "Inline",
    "Legend",
    "MaskDrawing",
    "Style",
    "inline",
    "join",
    "looks",
    "mask_drawings",
    "page_templates",
    "panel_tag",
    "short_name",
    "static_text",
    "theme",
    "with_shared_styles",
]
