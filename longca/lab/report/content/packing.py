"""The data of a page: columns as compact JSON, compressed, which the scripts and the study's page read."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from longca.core import escaped

SEPARATOR = "|"
# signs that JSON needs no escape for
DIGITS = "".join(sign for sign in map(chr, range(0x23, 0x7F)) if sign != "\\")
COMPRESSED = "application/zlib"
"""the type of script elements with compressed data; those of earlier pages are JSON as it is"""
_DATA = re.compile(rf'(<script type="{COMPRESSED}" id="\w+">)([^<]*)'.encode())


def script_json(value: Any) -> str:
    """JSON of a page's data, in few characters. Texts have escapes for control characters, since scripts put
    them on the page."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if text.isprintable() and "\\u00" not in text:  # JSON writes control characters so
        return text
    return json.dumps(_without_controls(value), separators=(",", ":"), ensure_ascii=False)


def _without_controls(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {_without_controls(key): _without_controls(part) for key, part in value.items()}
    return [_without_controls(part) for part in value] if isinstance(value, list | tuple) else value


def compressed(text: str) -> str:
    """The text of data as a script element holds it: zlib, in base64. The browser's `DecompressionStream`
    reads it."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def page_data(page: str, name: str) -> Any:
    """The value of a page's data of this id; None if the page has none."""
    element = re.search(rf'<script type="([^"]*)" id="{re.escape(name)}">(.*?)</script>', page, re.DOTALL)
    if element is None:
        return None
    content = element[2]
    return json.loads(zlib.decompress(b64decode(content)) if element[1] == COMPRESSED else content)


def is_same_page(kept: bytes, made: bytes) -> bool:
    """True if two files are the same bytes but for how their data are compressed: builds of zlib differ in
    that.

    Args:
        kept: may be anybody's; no more of its data is read than `made` has.
    """
    if kept == made:
        return True
    theirs, ours = _DATA.split(kept), _DATA.split(made)  # text, tag, data, text, tag, data … text
    return len(theirs) == len(ours) and all(
        piece == own or (index % 3 == 2 and _holds(piece, own))
        for index, (piece, own) in enumerate(zip(theirs, ours, strict=True))
    )


def _holds(kept: bytes, made: bytes) -> bool:
    content = zlib.decompress(b64decode(made))
    reader = zlib.decompressobj()
    try:
        read = reader.decompress(b64decode(kept, validate=True), len(content) + 1)
    except (ValueError, zlib.error):
        return False
    return read == content and reader.eof and not reader.unused_data


def packed(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The columns, each as one of: {"every": value}, {"names": [value …], "at": [index …]}, {"text": "a|b|c"}
    or {"values": [value …]}. If there are few names, "at" is a text with one character for each row, and
    "digits" has the character of each name.

    Args:
        columns: texts, numbers, or lists of numbers.
    """
    return {name: _pack(list(values)) for name, values in columns.items()}


def unpacked(pack: Mapping[str, Any], count: int) -> list[Any]:
    """The `count` values of a packed column."""
    if "values" in pack:
        return pack["values"]
    if "text" in pack:
        return pack["text"].split(SEPARATOR)
    if "digits" in pack:
        names = dict(zip(pack["digits"], pack["names"], strict=True))
        return [names[sign] for sign in pack["at"]]
    return [pack["names"][index] for index in pack["at"]] if "names" in pack else [pack["every"]] * count


def _pack(values: list[Any]) -> dict[str, Any]:
    if any(isinstance(value, (list, tuple)) for value in values):
        return {"values": values}
    names = list(dict.fromkeys(values))
    if len(names) == 1:
        return {"every": names[0]}
    is_text = all(isinstance(value, str) and SEPARATOR not in value for value in values)
    if len(names) <= len(values) / 4:
        index = {name: number for number, name in enumerate(names)}
        if len(names) <= len(DIGITS):
            at = "".join(DIGITS[index[value]] for value in values)
            return {"names": names, "digits": DIGITS[: len(names)], "at": at}
        if not is_text:  # compressed, texts take less than their numbers in a list
            return {"names": names, "at": [index[value] for value in values]}
    return {"text": SEPARATOR.join(values)} if is_text else {"values": values}
