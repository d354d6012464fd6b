"""The parts of documentation pages that tools write: the text between two markers."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def put(page: str, name: str, content: str) -> str:
    """The page with `content` between `<!-- begin NAME -->` and `<!-- end NAME -->`. Raises ValueError where
    they are not."""
    start = f"<!-- begin {name} -->"
    end = f"<!-- end {name} -->"
    before, found_start, rest = page.partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"the page has no place for '{name}': it needs the lines {start} and {end}")
    return f"{before}{start}\n{content}\n{end}{after}"


def with_blocks(page: Path, **blocks: str) -> str:
    """The text of a page with these blocks, by their names. Raises ValueError where one has no place."""
    text = page.read_text(encoding="utf-8")
    for name, content in blocks.items():
        text = put(text, name, content)
    return text


def write_blocks(page: Path, **blocks: str) -> None:
    """Write these blocks into a page. Raises ValueError where one has no place; the page then stays as it
    is."""
    page.write_text(with_blocks(page, **blocks), encoding="utf-8")


def as_code(text: str, names: Iterable[str]) -> str:
    """The text with these names, where they are whole words, as code."""
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.sub(rf"\b(?:{'|'.join(longest_first)})\b", lambda match: f"`{match[0]}`", text)
