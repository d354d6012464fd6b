"""Trees of SVG elements: parsing of matplotlib's drawings, and the same drawing with fewer bytes."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring, tostring

NAMESPACES = {"http://www.w3.org/2000/svg": "", "http://www.w3.org/1999/xlink": "xlink:"}
HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
LINK = "xlink:href"
# of styles: shares, for which one decimal is too coarse
EXACT = "opacity", "fill-opacity", "stroke-opacity"
Style = dict[str, str]
"""the properties of a style attribute"""


def parsed(text: str) -> Element:
    """The root of an SVG document, with names as they are written (`xlink:href`), without metadata, and
    without blanks between elements."""
    root = fromstring(text)
    for element in root.iter():
        element.tag = _name(str(element.tag))
        for name in list(element.attrib):
            if name.startswith("{"):
                element.set(_name(name), element.attrib.pop(name))
        if element.tag != "text" and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    for part in root.findall("metadata"):
        root.remove(part)
    return root


def document(root: Element) -> str:
    """The text of a standalone SVG document."""
    space, links = NAMESPACES
    root.attrib = {"xmlns": space, "xmlns:xlink": links, **root.attrib}
    return f"{HEAD}{text_of(root)}\n"


def text_of(element: Element) -> str:
    """An element and its parts as text."""
    return tostring(element, "unicode").replace(" />", "/>")  # ">" in values is written as "&gt;"


def compact(root: Element) -> None:
    """Shorten the drawing in place: one decimal, one path for equal bars, one style for equal marks, and no
    groups without a meaning."""
    for element in root.iter():
        for name, value in element.attrib.items():
            element.set(name, _rounded(name, value))
        if element.get("transform", "").startswith("rotate(0 "):
            del element.attrib["transform"]
    _prune(root)


def style_of(element: Element) -> Style:
    """The style of an element as properties."""
    pairs = (part.partition(":") for part in element.get("style", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs if value}


def set_style(element: Element, style: Style) -> None:
    """Give an element this style; without properties it has none."""
    if style:
        element.set("style", "; ".join(f"{name}: {value}" for name, value in style.items()))
    else:
        element.attrib.pop("style", None)


def _name(name: str) -> str:
    """A name in the notation {namespace}name, as it is written."""
    space, brace, own = name[1:].partition("}")
    return f"{NAMESPACES.get(space, '')}{own}" if brace else name


def _rounded(name: str, value: str) -> str:
    """An attribute with its numbers rounded."""
    if name == "d":
        return _outline(value)
    if name == "style":
        style = [part.partition(":") for part in value.split(";") if part.strip()]
        return "; ".join(
            f"{key.strip()}: {text.strip() if key.strip() in EXACT else _short_all(text.strip())}"
            for key, _, text in style
        )
    return value if name in ("id", LINK) or name.startswith("data-") else _short_all(value)


def _outline(path: str) -> str:
    """The same path with fewer letters: "M48.3 80.8L151.2 71.2"."""
    parts: list[str] = []
    for word in path.split():
        number = _short(word)
        separate = parts and not word.isalpha() and not number.startswith("-") and not parts[-1].isalpha()
        parts += [" ", number] if separate else [number]
    return "".join(parts)


def _short_all(text: str) -> str:
    """A text such as "translate(45.25 33)" with all its numbers rounded."""
    for sign in "(),":
        text = text.replace(sign, f" {sign} ")
    words = " ".join(_short(word) for word in text.split())
    return words.replace(" ( ", "(").replace(" )", ")").replace(" , ", ", ").replace("( ", "(")


def _short(word: str) -> str:
    """A number with one decimal at most; other words as they are."""
    whole, point, decimals = word.partition(".")
    if not point or not (whole.removeprefix("-") + decimals).isdigit():
        return "0" if word == "-0" else word
    short = f"{float(word):.1f}".removesuffix(".0")
    return "0" if short == "-0" else short


def _prune(group: Element) -> None:
    children: list[Element] = []
    for child in group:
        _prune(child)
        if child.tag == "g" and not child.attrib:
            children += list(child)  # its parts, or nothing
        elif children and _same_but_outline(children[-1], child):
            children[-1].set("d", children[-1].attrib["d"] + child.attrib["d"])
        else:
            children.append(child)
    group[:] = children
    if group.tag == "g":
        _share_style(group)


def _same_but_outline(element: Element, other: Element) -> bool:
    """True for two paths within the same frame that differ only in their outlines."""
    names = {"d", "clip-path", "style"}
    return (
        element.tag == other.tag == "path"
        and element.attrib.keys() == other.attrib.keys() == names
        and all(element.get(name) == other.get(name) for name in names - {"d"})
    )


def _share_style(group: Element) -> None:
    """Equal styles of neighbouring marks move to a group around them."""
    runs: list[list[Element]] = []
    for child in group:
        alike = (
            runs and child.tag == "use" == runs[-1][0].tag and child.get("style") == runs[-1][0].get("style")
        )
        if alike:
            runs[-1].append(child)
        else:
            runs.append([child])
    for run in runs:
        if len(run) > 1 and "style" in run[0].attrib:
            around = Element("g", {"style": run[0].attrib["style"]})
            for mark in run:
                del mark.attrib["style"]
            around[:] = run
            first = list(group).index(run[0])
            group[first : first + len(run)] = [around]
