"""Selection of a study's cells: by the filters of all commands, and by plug-ins that can be loaded."""

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from longca.core import (
    BrokenPlugin,
    Frozen,
    Registry,
    UserError,
    as_broken,
    parse_heads,
    parse_length,
    say_left_out,
    unknown,
)
from longca.lab.studies.cell import Cell

LENGTHS = ("seqlen", "new_tokens")
LOADED = ("kernel", "strategy", "corpus")  # masks are loaded when a study is expanded


class Selection(Frozen):
    """Filters over cells; an empty filter passes everything.

    Name filters accept globs ("causal*"), separated by commas, with "!" for exclusion.
    """

    kernel: str = ""
    strategy: str = ""
    """"usp", or with its kernel: "usp+band" """
    mask: str = ""
    direction: str = ""
    seqlen: str = ""
    """"8K", "1K..8K", or several separated by commas"""
    new_tokens: str = ""
    """like `seqlen`; cells in which all tokens are queries do not pass"""
    world: str = ""
    seed: str = ""
    heads: str = ""
    """query and KV heads, "64:8"; several separated by commas"""

    def apply(self, cells: Iterable[Cell]) -> list[Cell]:
        """The passing cells, in their order. Raises UserError if none passes, or a name matches nothing."""
        cells = list(cells)
        axes = {
            "kernel": self.kernel,
            "strategy": self.strategy,
            "mask": self.mask,
            "direction": self.direction,
        }
        chosen = cells
        for axis, text in axes.items():
            if text and axis == "strategy" and "+" in text:
                accepted = _names(axis, _as_ways(text), set(map(_way, cells)))
                chosen = [cell for cell in chosen if _way(cell) in accepted]
            elif text:
                accepted = _names(axis, text, {getattr(cell, axis) for cell in cells})
                chosen = [cell for cell in chosen if getattr(cell, axis) in accepted]
        for axis in ("seqlen", "new_tokens", "world", "seed"):
            if text := getattr(self, axis):
                ranges = [_range(axis, part) for part in text.split(",")]
                chosen = [cell for cell in chosen if _is_within(getattr(cell, axis), ranges)]
        if self.heads:
            wanted = {_heads(part) for part in self.heads.split(",")}
            chosen = [cell for cell in chosen if (cell.num_q_heads, cell.num_kv_heads) in wanted]
        if not chosen:
            given = ", ".join(f"{name} '{value}'" for name, value in self.model_dump().items() if value)
            raise UserError(
                "No cell of the study is left", why=f"no cell passes {given}", todo="Loosen the filters"
            )
        return chosen


def _names(axis: str, text: str, present: set[str | None]) -> set[str | None]:
    """The existing values that pass. None, for cells without this axis, passes if the filter only excludes
    names."""
    known = {name for name in present if name is not None}
    wanted = set()
    refused = set()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        matching = {name for name in known if fnmatchcase(name, part.removeprefix("!"))}
        if not matching:
            raise unknown(f"{axis} in this study", part.removeprefix("!"), known)
        (refused if part.startswith("!") else wanted).update(matching)
    return (wanted if any(not part.startswith("!") for part in parts) else present) - refused


def _way(cell: Cell) -> str | None:
    """ "usp+band"; None without a strategy."""
    return f"{cell.strategy}+{cell.kernel}" if cell.strategy else None


def _as_ways(text: str) -> str:
    """Filters of strategies, each with a kernel: any kernel where none is named."""
    return ",".join(part if "+" in part else f"{part}+*" for part in map(str.strip, text.split(",")) if part)


def _is_within(value: int | None, ranges: list[tuple[int, int]]) -> bool:
    return value is not None and any(low <= value <= high for low, high in ranges)


def _range(axis: str, text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    try:
        return _number(axis, low), _number(axis, high if dots else low)
    except ValueError:
        raise UserError(
            f"'{text}' is not a range of {axis}",
            todo="Write 8K or 1K..8K" if axis in LENGTHS else "Write 2 or 0..2",
        ) from None


def _heads(text: str) -> tuple[int, int]:
    try:
        return parse_heads(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _number(axis: str, text: str) -> int:
    if text.strip().isdecimal():  # 0 is a seed and not a length, but a range may begin with it
        return int(text)
    if axis not in LENGTHS:
        raise ValueError(text)
    return parse_length(text)


def loadable(cells: list[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells whose kernel, strategy and corpus can be loaded, and the reasons for the others, which are
    also reported on stderr.

    Raises:
        UserError: no cell is left.
    """
    broken: dict[tuple[str, str], UserError] = {}
    for kind in LOADED:
        names = sorted({name for cell in cells if (name := getattr(cell, kind))})
        with suppress(BrokenPlugin):  # of each below
            Registry(kind).check(names)
        for name in names:
            try:
                plugin = Registry(kind).load(name)
                if kind == "kernel":  # a run calls it between measurements
                    first = next(cell for cell in cells if cell.kernel == name)
                    plugin.work(first.call_spec, first.seqlen)
            except UserError as error:
                broken[kind, name] = error
            except Exception as error:
                broken[kind, name] = as_broken(Registry(kind).paths()[name], error)
    left = [cell for cell in cells if not any((kind, getattr(cell, kind)) in broken for kind in LOADED)]
    if broken and not left:
        raise next(iter(broken.values()))
    reasons = [str(error) for error in broken.values()]
    for reason in reasons:
        say_left_out(reason)
    return left, reasons
