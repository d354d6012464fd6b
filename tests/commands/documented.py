"""The commands that README and guides name, and what runs each: a test of this folder as it stands there, or
something else.

`elsewhere.yaml` beside this file lists the commands that this folder does not run, with what does, or why
nothing does.
`python -m tests.commands.documented` writes those that nothing runs into docs/results/checks.md.
"""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.helpers.support import ROOT
from tools.checks import PAGE
from tools.pages import put

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md")))
PROGRAMS = ("make", "snakemake", "longca", "torchrun", "srun", "python", "pip")
COMMAND = re.compile(rf"(?:[A-Z_]+=\S* +)*(?:{'|'.join(PROGRAMS)}) +\S")
GAP = re.compile(r"…|\b[A-Z]{3,}(?![\w=])")  # for the reader to fill
COMPLETE = ("longca data list",)  # needs no argument, unlike other commands of `data`
MARK = "not_run"
SHELLS = ("", "bash", "sh")
TRANSCRIPT = "console"


class Block(NamedTuple):
    """Lines of a page between two fences, or a piece of code in a sentence."""

    text: str
    inline: bool


@dataclass(frozen=True)
class Elsewhere:
    """Commands that this folder does not run.

    Args:
        commands: patterns, as of a shell.
        by: the test (`path::name`), the target (`make …`) or the line of `.ci/run` that runs them; empty if
            nothing does.
        why: the reason, where nothing does.
    """

    commands: tuple[str, ...]
    by: str = ""
    why: str = ""

    def has(self, command: str) -> bool:
        return any(fnmatch.fnmatchcase(command, pattern) for pattern in self.commands)


@cache
def documented() -> dict[str, str]:
    """Each command, and the name of the first page that has it."""
    first: dict[str, str] = {}
    for page, command, _ in _all():
        first.setdefault(command, page)
    return first


@cache
def _whole() -> frozenset[str]:
    """Commands as somebody would type them: those of blocks, and those of sentences that have more than a
    name."""
    return frozenset(
        command
        for _, command, inline in _all()
        if not (inline and command == _plain(command) and command not in COMPLETE) and not GAP.search(command)
    )


@cache
def _all() -> list[tuple[str, str, bool]]:
    """Page, command, and whether it stands in a sentence."""
    return [
        (page.name, command, block.inline)
        for page in PAGES
        for block in _blocks(page.read_text(encoding="utf-8"))
        for command in _commands(block)
    ]


@cache
def elsewhere() -> tuple[Elsewhere, ...]:
    content = yaml.safe_load(Path(__file__).with_name("elsewhere.yaml").read_text(encoding="utf-8"))
    return tuple(Elsewhere(tuple(entry.pop("commands")), **entry) for entry in content)


def run_here() -> list[str]:
    """The commands that this folder runs, in the order of the pages."""
    return [
        command
        for command in documented()
        if command.startswith("longca ")
        and command in _whole()
        and not any(entry.has(command) for entry in elsewhere())
    ]


def unaccounted() -> list[str]:
    """Commands that are neither run here nor listed."""
    here = run_here()
    return [
        command
        for command in documented()
        if command not in here
        and not any(entry.has(command) for entry in elsewhere())
        and not (command not in _whole() and any(other.startswith(_plain(command)) for other in here))
    ]


def table() -> str:
    """The commands that nothing runs, and why, as a table of the page of checks."""
    lines = [
        (f"`{command}`".replace("|", "\\|"), page, entry.why)
        for entry in elsewhere()
        if not entry.by
        for command, page in documented().items()
        if entry.has(command)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (("command", "page", "why"), ("---",) * 3, *lines))


def _blocks(text: str) -> Iterator[Block]:
    lines: list[str] | None = None
    prose: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if lines is None:
                lines = [line.strip().removeprefix("```")]
            else:
                typed = (
                    [line[2:] for line in lines if line.startswith("$ ")]
                    if lines[0] == TRANSCRIPT
                    else lines[1:]
                )
                if lines[0] in (*SHELLS, TRANSCRIPT):
                    yield Block("\n".join(typed), inline=False)
                lines = None
        else:
            (prose if lines is None else lines).append(line)
    for code in re.findall(r"`([^`]+)`", " ".join(prose)):
        yield Block(code, inline=True)


def _commands(block: Block) -> Iterator[str]:
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;| \| |(?<= )#.*| > .*", line):
            command = " ".join((part or "").split())
            if COMMAND.match(command):
                yield command


def _plain(command: str) -> str:
    """Program and sub-command."""
    words = command.split()
    return " ".join(words[:3] if words[1:2] in (["image"], ["data"]) else words[:2])


if __name__ == "__main__":
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), MARK, table()), encoding="utf-8")
