"""Output for people: whatever records and names hold, it moves no cursor and turns no direction of a
terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from longca.core.errors import escaped

_NO_ASCII = re.compile(r"[^\x00-\x7f]")


class EscapingStream:
    """A text stream that writes control characters as escapes; all else is that of the stream below."""

    def __init__(self, stream: TextIO) -> None:
        self.below = stream

    def write(self, text: str) -> int:
        self.below.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Standard output writes control characters as escapes. Standard error has the text of UserErrors, which
    is safe."""
    with redirect_stdout(cast("TextIO", EscapingStream(sys.stdout))):
        yield


def styled_output() -> TextIO:
    """Standard output for who styles text by escapes of its own; what it is given must be escaped before."""
    return sys.stdout.below if isinstance(sys.stdout, EscapingStream) else sys.stdout


def escaped_json(text: str) -> str:
    """The same JSON, in which characters that a terminal obeys are written as JSON escapes them."""
    return text if text.isascii() else _NO_ASCII.sub(_as_json, text)


def _as_json(match: re.Match[str]) -> str:
    character = match[0]
    if escaped(character) == character:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
