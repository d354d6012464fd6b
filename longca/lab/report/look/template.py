"""Templates of offline pages: their environment, and their common texts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import escaped, format_length
from longca.lab.store.text import format_bytes, number, percent, plural, short_device

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent.parent
_CODE = re.compile(r"`([^`]+)`")
_DOCUMENT = re.compile(r"\bdocs/[\w/-]+\.md")


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
        "code": code,
        "linked": linked,
    }
    made.filters.update(filters)
    made.template_class = PlainTemplate
    return made


def code(text: str) -> Markup:
    """The text with `names` as code, as plug-ins and claims write them."""
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def linked(text: str, documents: str) -> Markup:
    """The text with links to the documents that it names.

    Args:
        documents: the way from the page to the project; "" if it has none there.
    """
    from markupsafe import Markup, escape

    link = rf'<a href="{escape(documents)}\g<0>">\g<0></a>'
    return Markup(_DOCUMENT.sub(link, str(escape(text)))) if documents else escape(text)


def static_text(*names: str) -> str:
    """The concatenated style sheets or scripts of the report."""
    return "".join((HERE / "static" / name).read_text(encoding="utf-8") for name in names)
