"""Cells whose plug-ins can be loaded: one that is broken costs its own cells, and no others."""

from contextlib import suppress

from longca.core.cell import Cell
from longca.core.errors import UserError
from longca.core.plugin import BrokenPlugin, Registry, say_left_out

KINDS = ("kernel", "strategy", "corpus")  # masks are loaded when a study is expanded


def loadable(cells: list[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells whose kernel, strategy and corpus can be loaded, and why others cannot, which is also named on stderr.

    Raises:
        UserError: no cell is left.
    """
    broken: dict[tuple[str, str], UserError] = {}
    for kind in KINDS:
        names = sorted({name for cell in cells if (name := getattr(cell, kind))})
        with suppress(BrokenPlugin):  # of each below
            Registry(kind).check(names)
        for name in names:
            try:
                Registry(kind).load(name)
            except UserError as error:
                broken[kind, name] = error
    left = [cell for cell in cells if not any((kind, getattr(cell, kind)) in broken for kind in KINDS)]
    if broken and not left:
        raise next(iter(broken.values()))
    reasons = [str(error) for error in broken.values()]
    for reason in reasons:
        say_left_out(reason)
    return left, reasons
