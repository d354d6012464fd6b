"""The live display of a run in a terminal; readable in 60 columns."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from longca.bench.run.progress import GROUPS, Progress, line
from longca.core.cell import Cell
from longca.core.record import Record


class RichProgress(Progress):
    """A display of three lines that stays at the bottom; what went wrong stays above it."""

    def __init__(self, console: Console | None = None) -> None:
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
        self._live.console.print(Text(text, style="yellow"))

    def close(self) -> None:
        self._live.stop()

    def render(self) -> Group:
        """The display as it is now."""
        todo = self.num_cells - self.num_kept
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=max(todo, 1), completed=self.num_done), f"{self.num_done}/{todo}  ETA {self.eta}")
        counts = "  ".join(f"{name} {sum(self.counts[status] for status in members)}" for name, members in GROUPS.items())
        current = Text(f"now: {self._cell.title}" if self._cell else "", no_wrap=True, overflow="ellipsis", style="dim")
        return Group(bar, Text(f"{counts}  left {self.num_left}", no_wrap=True, overflow="ellipsis"), current)
