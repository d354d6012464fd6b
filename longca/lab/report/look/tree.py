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
    """Shorten the drawing in place: one decimal, one path for equal bars, one style for equal marks, one
    group for a method's line and its bars, and no groups without a meaning."""
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
    """The same path with fewer letters: "M48.3 80.8l102.9-9.6H20V3"."""
    words = [_short(word) for word in path.split()]
    parts: list[str] = []
    at = ("", "")  # the current point, where it is known
    index = 0
    while index < len(words):
        word = words[index]
        point = (words[index + 1], words[index + 2]) if word in ("M", "L") else ("", "")
        if word == "L" and at[0]:
            parts += _line(at, point, parts)
            index += 3
        elif word in ("M", "L"):
            parts += [word, *point]
            index += 3
        else:  # the end of a part, a curve, or one of its numbers
            parts.append(word)
            index += 1
        at = point
    return _written(parts)


def _line(at: tuple[str, str], point: tuple[str, str], before: list[str]) -> list[str]:
    """A line from one point to another one: upright, level, or by the distance where that is shorter."""
    if at[0] == point[0]:
        return ["V", point[1]]
    if at[1] == point[1]:
        return ["H", point[0]]
    way = [_short(f"{float(there) - float(here):.1f}") for here, there in zip(at, point, strict=True)]
    last = next((part for part in reversed(before) if part.isalpha()), "")
    choices = [
        [*(() if letter == last else letter), *numbers] for letter, numbers in (("l", way), ("L", point))
    ]
    return min(choices, key=lambda parts: len(_written(["0", *parts])))


def _written(parts: list[str]) -> str:
    """Letters and numbers as one text, with blanks only where they are needed."""
    text = ""
    for part in parts:
        text += f" {part}" if text and not (part.isalpha() or part[0] == "-" or text[-1].isalpha()) else part
    return text


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
        # the parts of a group without a meaning, or nothing
        for part in list(child) if child.tag == "g" and not child.attrib else [child]:
            if (twin := _twin(children, part)) is not None:
                twin.set("d", twin.attrib["d"] + part.attrib["d"])
            elif children and _is_rest(children[-1], part):
                children[-1].attrib |= part.attrib
                children[-1].extend(part)
            else:
                children.append(part)
    group[:] = children
    if group.tag == "g":
        _share_style(group)


def _twin(before: list[Element], path: Element) -> Element | None:
    """The path before this one that differs from it only in its outline, if only labels and ticks lie between
    them; None without one."""
    if path.tag != "path":
        return None
    for element in reversed(before):
        if _same_but_outline(element, path):
            return element
        if element.tag not in ("text", "use"):
            return None
    return None


def _is_rest(bars: Element, points: Element) -> bool:
    """True for two groups of one method of which the first has no marks."""
    groups = [{name: of.get(name) for name in ("class", "data-method", "style")} for of in (bars, points)]
    is_points = str(groups[0]["class"]).startswith("points")
    return (
        bars.tag == points.tag == "g"
        and is_points
        and groups[0] == groups[1]
        and "data-cells" not in bars.attrib
        and next(bars.iter("use"), None) is None
    )


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
