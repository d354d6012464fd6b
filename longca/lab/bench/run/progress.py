"""The display of a run: one line a cell, or a live display in a terminal."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from shutil import get_terminal_size
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Literal, TextIO

from longca.core import UserError, escaped
from longca.lab.bench.run.scores import FAILED, Score, Scoreboard, ShortNames
from longca.lab.store.text import number, plural
from longca.lab.studies import STATUSES, Cell, Record

if TYPE_CHECKING:
    from rich.console import Console, Group

GROUPS = {"ok": ("ok",), "unsupported": ("unsupported", "unavailable"), "oom": ("oom",), "failed": FAILED}
FAR_BEHIND = 2  # times the first one's time; more is said in multiples
REASON_CHARS = 200  # the record has it whole


class Progress:
    """Counts and scores finished cells. It displays nothing itself; subclasses do."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        self.board = Scoreboard()
        self.names = ShortNames([])
        self.headline = ""
        """what was asked, measured before and to do"""
        self.num_cells = self.num_kept = 0
        self.num_playoffs = self.num_played = 0
        self._playing_since = 0.0
        self.logs: Path | None = None
        self._begun = 0.0

    def start(self, cells: Sequence[Cell], kept: Sequence[Score] = (), logs: Path | None = None) -> None:
        """Called before the first cell.

        Args:
            cells: all cells of the run.
            kept: scores of those that are measured already.
            logs: folder of what the measuring processes print.
        """
        self.num_cells, self.num_kept, self.logs, self._begun = len(cells), len(kept), logs, time.monotonic()
        self.board, self.names = Scoreboard(kept), ShortNames(cells)
        common = f" ({self.names.common})" if self.names.common else ""
        todo = f"{self.num_kept} measured before, {self.num_left} to do"
        self.headline = f"{plural(self.num_cells, 'cell')}{common}: {todo}"

    def begin(self, cell: Cell) -> None:
        """Called when the measurement of a cell starts."""

    def end(self, record: Record, score: Score | None = None) -> None:
        """Called with the record of a finished cell, and with its score where that is known already."""
        self.counts[record.outcome.status] += 1
        self.board.add(score or Score.of(record))

    def start_playoffs(self, num_due: int, num_kept: int) -> None:
        """Called after the last cell, before the first play-off."""
        self.num_playoffs, self.num_played, self._playing_since = num_due, 0, time.monotonic()

    def end_playoff(self, title: str, records: Sequence[Record]) -> None:
        """Called with the records of a finished play-off."""
        self.num_played += 1
        left_s = (
            (time.monotonic() - self._playing_since) / self.num_played * (self.num_playoffs - self.num_played)
        )
        total = str(self.num_playoffs)
        self.note(
            f"play-off {self.num_played:>{len(total)}}/{total} eta {duration(left_s)}  {title}: "
            f"{played(records)}"
        )

    def note(self, text: str) -> None:
        """Display any other message."""

    def close(self) -> None:
        """Called after the last cell."""

    @property
    def num_done(self) -> int:
        return self.counts.total()

    @property
    def num_left(self) -> int:
        return self.num_cells - self.num_kept - self.num_done

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left at the mean pace so far; None before the first cell is finished."""
        return (time.monotonic() - self._begun) / self.num_done * self.num_left if self.num_done else None

    @property
    def eta(self) -> str:
        return "?" if self.eta_seconds is None else duration(self.eta_seconds)

    def line(self, width: int | None, head: str = "") -> str:
        """The last finished cell: its numbers and the share of the best so far, or what came of it and why.

        Args:
            width: of the terminal. Longer names are cut, longer reasons go on in further lines. None: all in
                one line.
            head: stands before it.
        """
        score = self.board.scores[-1]
        name = self.names.name(score.cell)
        numbers = self.board.numbers(score)
        if score.time_ms is not None:
            room = (
                self.names.longest
                if width is None
                else min(self.names.longest, width - len(head) - len(numbers) - 1)
            )
            return f"{head}{name if len(name) <= room else f'{name[: room - 1]}…':<{room}} {numbers}"
        why = [shorten(score.reason, REASON_CHARS, placeholder=" …")] if score.reason else []
        if score.is_failed:
            why += [f"at {score.raised_at}"] * bool(score.raised_at) + [f"logs in {self.logs}/"] * (
                self.logs is not None
            )
        first = f"{head}{name}  {score.status}"
        if width is None:
            return f"{first}  ({'; '.join(why)})" if why else first
        return "\n".join(
            line for text in (first, *(f"    {text}" for text in why)) for line in _wrapped(text, width)
        )


class PlainProgress(Progress):
    """Prints one line for each cell; on a terminal, further lines for long reasons."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    def start(self, cells: Sequence[Cell], kept: Sequence[Score] = (), logs: Path | None = None) -> None:
        super().start(cells, kept, logs)
        self._say(self.headline)

    def end(self, record: Record, score: Score | None = None) -> None:
        super().end(record, score)
        total = str(self.num_cells - self.num_kept)
        head = f"{self.num_done:>{len(total)}}/{total} eta {self.eta}  "
        self._say(self.line(get_terminal_size().columns if self.stream.isatty() else None, head))

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class LogProgress(PlainProgress):
    """Appends one line for each cell to a file. Where a line cannot be written, the run goes on, and the end
    says so.

    Raises UserError if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._error = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path.open("a", encoding="utf-8"))
        except OSError as error:
            raise UserError(f"Cannot write '{path}'", why=error.strerror or str(error)) from error

    def close(self) -> None:
        with self._patience():
            self.stream.close()
        if self._error:
            print(
                f"longca: {UserError(f'Some lines of {self.path} are missing', why=self._error)}",
                file=sys.stderr,
            )

    def _say(self, text: str) -> None:
        with self._patience():
            super()._say(text)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or error.strerror or str(error)


class RichProgress(Progress):
    """A display of three lines that stays at the bottom; the numbers of each cell, and what went wrong, stay
    above it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._cell: Cell | None = None
        # the command's standard error escapes control characters, and so the display's own: it writes below
        console = console or Console(file=getattr(sys.stderr, "below", sys.stderr))
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self.render)

    def start(self, cells: Sequence[Cell], kept: Sequence[Score] = (), logs: Path | None = None) -> None:
        super().start(cells, kept, logs)
        if self.num_left:
            self._live.start()

    def begin(self, cell: Cell) -> None:
        self._cell = cell

    def end(self, record: Record, score: Score | None = None) -> None:
        super().end(record, score)
        self._cell = None
        status = record.outcome.status
        if status in (*GROUPS["ok"], *FAILED):
            self._print(self.line(self._live.console.width), "red" if status in FAILED else "")

    def note(self, text: str) -> None:
        self._print(text, "yellow")

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(escaped(text), style=style))

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
        bar.add_row(
            ProgressBar(total=max(todo, 1), completed=self.num_done),
            f"{self.num_done}/{todo}  ETA {self.eta}",
        )
        counts = "  ".join(
            f"{name} {sum(self.counts[status] for status in members)}" for name, members in GROUPS.items()
        )
        current = Text(
            escaped(f"now: {self._cell.title}") if self._cell else "",
            no_wrap=True,
            overflow="ellipsis",
            style="dim",
        )
        playoffs = f"  play-offs {self.num_played}/{self.num_playoffs}" if self.num_playoffs else ""
        return Group(
            bar, Text(f"{counts}  left {self.num_left}{playoffs}", no_wrap=True, overflow="ellipsis"), current
        )


class Both(Progress):
    """Two displays at once."""

    def __init__(self, first: Progress, second: Progress) -> None:
        super().__init__()
        self.parts = (first, second)

    def start(self, cells: Sequence[Cell], kept: Sequence[Score] = (), logs: Path | None = None) -> None:
        super().start(cells, kept, logs)
        for part in self.parts:
            part.start(cells, kept, logs)

    def begin(self, cell: Cell) -> None:
        for part in self.parts:
            part.begin(cell)

    def end(self, record: Record, score: Score | None = None) -> None:
        score = score or Score.of(record)
        super().end(record, score)
        for part in self.parts:
            part.end(record, score)

    def start_playoffs(self, num_due: int, num_kept: int) -> None:
        for part in self.parts:
            part.start_playoffs(num_due, num_kept)

    def end_playoff(self, title: str, records: Sequence[Record]) -> None:
        for part in self.parts:
            part.end_playoff(title, records)

    def note(self, text: str) -> None:
        for part in self.parts:
            part.note(text)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def is_plain(mode: Literal["auto", "rich", "plain"]) -> bool:
    """True for lines instead of a live display: "auto" is plain where there is no terminal or CI is set."""
    return mode == "plain" or (mode == "auto" and (bool(os.environ.get("CI")) or not sys.stderr.isatty()))


def make_progress(mode: Literal["auto", "rich", "plain"], log: Path | None = None) -> Progress:
    """The display on stderr.

    Args:
        mode: as of `is_plain`.
        log: a file that gets one line for each cell in addition.
    """
    shown: Progress = PlainProgress(sys.stderr) if is_plain(mode) else RichProgress()
    return shown if log is None else Both(shown, LogProgress(log))


def played(records: Sequence[Record]) -> str:
    """The players of a play-off by their times, and those that failed: "band 1.2 ms, fa3 +2.1 %, flex error;
    14 rounds"."""
    times_ms = {
        record.cell.kernel: statistics.median(record.samples.time_ms[0])
        for record in records
        if record.samples
    }
    ordered = sorted(times_ms, key=lambda kernel: times_ms[kernel])
    texts = [
        f"{kernel} {number(times_ms[kernel])} ms"
        if index == 0
        else f"{kernel} {_behind(times_ms[kernel] / times_ms[ordered[0]])}"
        for index, kernel in enumerate(ordered)
    ]
    texts += [f"{record.cell.kernel} {record.outcome.status}" for record in records if not record.samples]
    rounds = max((len(record.samples.time_ms[0]) for record in records if record.samples), default=0)
    return f"{', '.join(texts)}; {plural(rounds, 'round')}"


def _behind(ratio: float) -> str:
    return f"+{100 * (ratio - 1):.1f} %" if ratio < FAR_BEHIND else f"{number(ratio)}×"


def duration(seconds: float) -> str:
    """75 → "0:01:15"."""
    return str(timedelta(seconds=round(seconds)))


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`; paths and other long words stay whole, so that a terminal makes
    links of them."""
    return wrap(
        text,
        width,
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
        replace_whitespace=False,
    )
