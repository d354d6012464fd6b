"""The display of a run: one line a cell, or a live display in a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, TextIO

from longca.core.cell import Cell
from longca.core.errors import UserError
from longca.core.record import STATUSES, Record
from longca.store.text import plural

if TYPE_CHECKING:
    from rich.console import Console, Group

GROUPS = {"ok": ("ok",), "unsupported": ("unsupported", "unavailable"), "oom": ("oom",),
          "failed": ("incorrect", "error", "timeout")}
REASON_CHARS = 200  # the record has it whole


class Progress:
    """Counts what is done. Shows nothing itself: its subclasses do."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        self.num_cells = self.num_kept = 0
        self._begun = 0.0

    def start(self, num_cells: int, num_kept: int) -> None:
        """Before the first cell; `num_kept` of the cells are measured already."""
        self.num_cells, self.num_kept, self._begun = num_cells, num_kept, time.monotonic()

    def begin(self, cell: Cell) -> None:
        """This cell is being measured."""

    def end(self, record: Record) -> None:
        """This is what came of it."""
        self.counts[record.outcome.status] += 1

    def note(self, text: str) -> None:
        """Something else that must be seen."""

    def close(self) -> None:
        """No more cells."""

    @property
    def num_done(self) -> int:
        return self.counts.total()

    @property
    def num_left(self) -> int:
        return self.num_cells - self.num_kept - self.num_done

    @property
    def eta_seconds(self) -> float | None:
        """What is left, at the mean pace so far; None before the first cell is done."""
        return (time.monotonic() - self._begun) / self.num_done * self.num_left if self.num_done else None

    @property
    def eta(self) -> str:
        return "?" if self.eta_seconds is None else duration(self.eta_seconds)


class PlainProgress(Progress):
    """One line a cell."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def start(self, num_cells: int, num_kept: int) -> None:
        super().start(num_cells, num_kept)
        self._say(f"{plural(num_cells, 'cell')}: {num_kept} measured before, {self.num_left} to do")

    def end(self, record: Record) -> None:
        super().end(record)
        total = str(self.num_cells - self.num_kept)
        self._say(f"[{self.num_done:>{len(total)}}/{total} eta {self.eta}] {line(record)}")

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class LogProgress(PlainProgress):
    """One line a cell, at the end of a file. Raises UserError whenever it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._as_user_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path.open("a", encoding="utf-8"))

    def close(self) -> None:
        with self._as_user_error():
            self.stream.close()

    def _say(self, text: str) -> None:
        with self._as_user_error():
            super()._say(text)

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}'", why=error.strerror or str(error)) from error


class RichProgress(Progress):
    """A display of three lines that stays at the bottom; what went wrong stays above it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._cell: Cell | None = None
        self._live = Live(console=console or Console(stderr=True), refresh_per_second=2, get_renderable=self.render)

    def start(self, num_cells: int, num_kept: int) -> None:
        super().start(num_cells, num_kept)
        self._live.start()

    def begin(self, cell: Cell) -> None:
        self._cell = cell

    def end(self, record: Record) -> None:
        super().end(record)
        self._cell = None
        if record.outcome.status in GROUPS["failed"]:
            self.note(line(record))

    def note(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(text, style="yellow"))

    def close(self) -> None:
        self._live.stop()

    def render(self) -> Group:
        """The display as it is now."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        todo = self.num_cells - self.num_kept
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=max(todo, 1), completed=self.num_done), f"{self.num_done}/{todo}  ETA {self.eta}")
        counts = "  ".join(f"{name} {sum(self.counts[status] for status in members)}" for name, members in GROUPS.items())
        current = Text(f"now: {self._cell.title}" if self._cell else "", no_wrap=True, overflow="ellipsis", style="dim")
        return Group(bar, Text(f"{counts}  left {self.num_left}", no_wrap=True, overflow="ellipsis"), current)


class Both(Progress):
    """Two displays at once."""

    def __init__(self, first: Progress, second: Progress) -> None:
        super().__init__()
        self.parts = (first, second)

    def start(self, num_cells: int, num_kept: int) -> None:
        super().start(num_cells, num_kept)
        for part in self.parts:
            part.start(num_cells, num_kept)

    def begin(self, cell: Cell) -> None:
        for part in self.parts:
            part.begin(cell)

    def end(self, record: Record) -> None:
        super().end(record)
        for part in self.parts:
            part.end(record)

    def note(self, text: str) -> None:
        for part in self.parts:
            part.note(text)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def make_progress(mode: Literal["auto", "rich", "plain"], log: Path | None = None) -> Progress:
    """The display for this place, on stderr; "auto" is plain where there is no terminal or CI is set.

    Args:
        log: a file that takes one line a cell besides.
    """
    plain = mode == "plain" or (mode == "auto" and (bool(os.environ.get("CI")) or not sys.stderr.isatty()))
    if plain:
        shown: Progress = PlainProgress(sys.stderr)
    else:
        shown = RichProgress()
    return shown if log is None else Both(shown, LogProgress(log))


def line(record: Record) -> str:
    """A record in one line: status, seconds, cell, and why it is not ok."""
    outcome = record.outcome.model_dump()
    why = next((str(outcome[key]) for key in ("reason", "message", "where") if outcome.get(key)), "")
    reason = f"  ({shorten(why, REASON_CHARS, placeholder=' …')})" if why else ""
    return f"{record.outcome.status:<11} {record.seconds:6.1f} s  {record.cell.title}{reason}"


def duration(seconds: float) -> str:
    """75 → "0:01:15"."""
    return str(timedelta(seconds=round(seconds)))
