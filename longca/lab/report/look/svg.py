"""Drawings as SVG: standalone files, and elements of the page, whose colours follow the theme."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from xml.etree.ElementTree import Element

from longca.lab.report.look.colours import css_colour
from longca.lab.report.look.style import RC
from longca.lab.report.look.tags import Key, read_tag
from longca.lab.report.look.tree import LINK, compact, document, parsed, set_style, style_of, text_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

    from longca.lab.report.look.style import Style

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FONT = "font-family"
OWN = ("var(--k-", "var(--s-", "var(--spare-")  # the beginnings of methods' colours
SHIFT = "data-shift"  # of a panel in narrow windows: x and y in points
REFERENCES = (LINK, "href", "clip-path")
# a tag with a style: its beginning, its style, its rest
_STYLED = re.compile(r'(<[^>]*?) style="([^"]*)"([^>]*>)')
_ROWS = re.compile(r' data-rows="([^"]*)"')
TITLE_HEIGHT = 8  # of the letters of a title, beside which the mask is drawn


class Drawable(Protocol):
    """A figure of a page."""

    def draw(self, data: pd.DataFrame, style: Style) -> Canvas: ...


class PageDrawings(NamedTuple):
    """The drawings of a page, with what they share."""

    drawings: list[Inline]
    rules: str
    """of the classes in place of styles"""
    rows: list[str]
    """the rows of all marks of each group, by the number that is its `data-rows`"""


class NarrowSize(NamedTuple):
    """The size in narrow windows of a drawing whose panels move there: each by its style's `--x` and `--y`.
    All in points."""

    width: float
    height: float
    full_width: float
    """of the drawing in other windows"""


@dataclass(frozen=True)
class Inline:
    """A drawing as an element of the page, with its legend."""

    svg: str
    keys: list[Key]
    marks: tuple[str, ...] = ()
    """the rows of each mark (`data-rows`)"""
    narrow_svg: str = ""
    """the same drawing for narrow windows, of plots of dots in rows; "" for others"""
    narrow_size: NarrowSize | None = None


def draw(figure: Drawable, data: pd.DataFrame, style: Style) -> str:
    """A figure as a standalone SVG document, in light colours; equal data give equal bytes.

    Groups have the class `points` (of `data-method`, with the cells of each mark in `data-cells`), `panel`
    (`data-panel`: its title) or `title`.
    """
    return document(_drawn(figure, data, style)[0])


def inline(
    figure: Drawable,
    data: pd.DataFrame,
    style: Style,
    name: str,
    label: str,
    rows: Mapping[str, int] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Inline:
    """A figure as an element of the page: themed, labelled, with unique ids. Drawings of masks are the page's
    symbols `m-NAME`.

    Args:
        name: begins the ids of this drawing alone on the page (`short_name`).
        label: a description of the drawing for screen readers.
        rows: cell → its row in the page's records, which replaces the cell id (`data-rows`).
        variables: method → CSS variable of its colour, for grey lines that light up.
    """
    root, legend = _drawn(figure, data, style)
    for sheet in [part for part in root.findall("defs") if part.find("style") is not None]:
        root.remove(sheet)  # the page's own has the same rules
    _rename_ids(root, name)
    marks: list[str] = []
    for element in root.iter():
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        _theme(element)
        if "data-cells" in element.attrib:
            cells = element.attrib.pop("data-cells").split(",")
            of_group = [_rows_of_mark(mark.split("+"), rows or {}) for mark in cells]
            element.set("data-rows", ",".join(of_group))
            marks += of_group
        if element.get("class") == "points faint" and variables:
            set_style(
                element, {**style_of(element), "--own": f"var(--{variables[element.attrib['data-method']]})"}
            )
        if shift := element.attrib.pop(SHIFT, ""):
            x, y = shift.split()
            set_style(element, {**style_of(element), "--x": f"{x}px", "--y": f"{y}px"})
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    if legend.narrow_size:
        root.set("preserveAspectRatio", "xMinYMin")  # with the panels moved it is higher than its box
    has_rows = any("rows" in element.get("class", "").split() for element in root.iter("g"))
    narrow = (
        inline(figure, data, style.narrow, f"{name}n", label, rows, variables).svg
        if has_rows and style != style.narrow
        else ""
    )
    size = legend.narrow_size and NarrowSize(*legend.narrow_size, float(root.attrib["viewBox"].split()[2]))
    return Inline(text_of(root), legend.keys, tuple(marks), narrow, size)


class _Legend(NamedTuple):
    """The parts of a drawing that the page shows around it."""

    keys: list[Key]
    narrow_size: tuple[float, float] | None


def _drawn(figure: Drawable, data: pd.DataFrame, style: Style) -> tuple[Element, _Legend]:
    """The figure's elements, and its legend if the page shows it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with matplotlib.rc_context(RC):
        canvas = figure.draw(data, style)
        canvas.patch.set_visible(False)
        FigureCanvasSVG(canvas).print_svg(
            out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    root = parsed(out.getvalue())
    legend = _Legend([], None)
    for element in list(root.iter()):
        text_style = style_of(element)
        if FONT in text_style:
            set_style(element, {**text_style, FONT: SANS})
        if element.tag == "g" and "id" in element.attrib:
            legend = _label(element, read_tag(element.attrib.pop("id"))) or legend
    compact(root)
    return root, legend


def _label(group: Element, tag: dict[str, Any]) -> _Legend | None:
    """Give a group what its tag says, as attributes. Returns the legend if it has that."""
    kind = tag.get("kind")
    if kind == "points":
        group.set("class", "points faint" if tag["faint"] else "points")
        group.set("data-method", tag["method"])
        if tag["cells"]:
            group.set("data-cells", ",".join("+".join(ids) for ids in tag["cells"]))
    elif kind == "panel":
        group.set("class", "panel rows" if tag.get("rows") else "panel")
        group.set("data-panel", tag["title"])
        if any(tag["shift"]):
            group.set(SHIFT, " ".join(f"{points:.1f}" for points in tag["shift"]))
    elif kind == "rows":
        group.set("class", "rows")
    elif kind == "title":
        group.set("class", "title")
        if tag["mask"]:
            group.insert(0, _picture(group, tag["mask"], tag["shift"]))
    elif kind == "legend":
        return _Legend([Key(**key) for key in tag["keys"]], tuple(tag["size"]) if tag["size"] else None)
    return None


def _picture(title: Element, mask: str, shift: float) -> Element:
    """The drawing of a mask before a title, as a use of the page's symbol."""
    text = next(title.iter("text"))
    x = float(text.attrib["x"])
    y = float(text.attrib["y"])
    size = f"{shift - 3:g}"
    return Element(
        "use",
        {
            "href": f"#m-{mask}",
            "x": str(x - shift),
            "y": str(y - TITLE_HEIGHT),
            "width": size,
            "height": size,
        },
    )


def short_name(number: int) -> str:
    """The name of a page's drawing of this number: "A" to "Z", "AA" and so on. No other id of a page has
    capitals."""
    rest, letter = divmod(number, 26)
    return (short_name(rest - 1) if rest else "") + chr(ord("A") + letter)


def _rename_ids(root: Element, name: str) -> None:
    """Ids that are short, since a page has thousands of uses, and unique on the page: "B12"."""
    old = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    new = {f"#{known}": f"#{name}{number}" for number, known in enumerate(dict.fromkeys(old))}
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", new[f"#{element.attrib['id']}"][1:])
        for attribute in REFERENCES:
            target = element.get(attribute, "")
            inner = target.removeprefix("url(").removesuffix(")")
            if inner in new:
                element.set(attribute, target.replace(inner, new[inner]))


def _theme(element: Element) -> None:
    """Colours as variables of the theme. Text in a method's colour, which must be easier to read than a line,
    keeps it as `--own`: the style sheet mixes it with ink."""
    style = style_of(element)
    if not style:
        return
    style.pop(FONT, None)
    style = {key: css_colour(value) for key, value in style.items()}
    if element.tag == "text" and style.get("fill", "").startswith(OWN):
        style["--own"] = style.pop("fill")
        element.set("class", "own")
    set_style(element, style)


def _rows_of_mark(cells: list[str], rows: Mapping[str, int]) -> str:
    """The rows of a mark's cells, "3+7"; "3+7/50" if only two of its 50 cells are on the page."""
    cells = list(dict.fromkeys(cells))
    shown = [str(rows[cell]) for cell in cells if cell in rows]
    return "+".join(shown) + (f"/{len(cells)}" if shown and len(shown) < len(cells) else "")


def with_shared_styles(drawings: Sequence[Inline]) -> PageDrawings:
    """The drawings of a page with classes in place of styles that several elements have, and with numbers in
    place of their marks' rows: a page has thousands of marks and few styles, and only scripts read rows."""
    texts = [text for drawing in drawings for text in (drawing.svg, drawing.narrow_svg)]
    counts = Counter(match[2] for text in texts for match in _STYLED.finditer(text))
    names = {
        text: f"z{number}" for number, text in enumerate(text for text, count in counts.items() if count > 1)
    }
    rows: dict[str, int] = {}

    def named(match: re.Match[str]) -> str:
        name = names.get(match[2])
        if name is None:
            return match[0]
        tag = f"{match[1]}{match[3]}"
        if ' class="' in tag:
            return tag.replace(' class="', f' class="{name} ', 1)
        return f'{match[1]} class="{name}"{match[3]}'

    def numbered(match: re.Match[str]) -> str:
        return f' data-rows="{rows.setdefault(match[1], len(rows))}"'

    def lighter(svg: str) -> str:
        return _ROWS.sub(numbered, _STYLED.sub(named, svg))

    shared = [
        replace(drawing, svg=lighter(drawing.svg), narrow_svg=lighter(drawing.narrow_svg))
        for drawing in drawings
    ]
    rules = "".join(f".{name}{{{text}}}" for text, name in names.items())
    return PageDrawings(shared, rules, list(rows))
