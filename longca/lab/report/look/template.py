"""Templates of offline pages: their environment, and their common texts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import escaped, format_length
from longca.lab.store.text import format_bytes, number, percent, plural, short_device

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent.parent


@cache  # compiling them takes a quarter of the time of a small page, and some commands render several pages
def page_templates(*folders: Path) -> Environment:
    """Templates of these folders and of the report, with escaped values. Characters that no page needs, which
    move a cursor or turn the direction of a text, are written as escapes.

    A page's head includes `style.html.j2`, which needs `theme` (`longca.lab.report.look.colours.theme`) and
    `css`
    (`static_text("report.css")`).
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

    class PlainTemplate(Template):
        """A template whose result has no control characters, whatever records and names hold."""

        def render(self, *values: Any, **named: Any) -> str:
            return escaped(super().render(*values, **named))

    made = Environment(
        loader=FileSystemLoader([*folders, HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "number": number,
        "percent": percent,
        "bytes": format_bytes,
        "tokens": format_length,
        "device": short_device,
        "plural": plural,
    }
    made.filters.update(filters)
    made.template_class = PlainTemplate
    return made


def static_text(*names: str) -> str:
    """The concatenated style sheets or scripts of the report."""
    return "".join((HERE / "static" / name).read_text(encoding="utf-8") for name in names)
