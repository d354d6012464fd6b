"""The places of a figure's panels: rows as wide as the figure, and fewer columns in narrow windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

POINTS = 72  # an inch
CHAR_IN = 0.056  # mean width of a letter at 8 points
SMALL_CHAR_IN = 0.054  # at 7 points for names
LEAST_IN = 1.1  # width of a panel
NARROW_IN = 4.95  # of drawings in windows of 390 px: as wide as their text at one px a point
MOST_MAGNIFIED = 1.35  # drawings in windows of 390 px, where one column leaves room
TITLE_IN = 0.17  # height of a line of the title
BOTTOM_IN = 0.3
LEFT_IN = 0.5
RIGHT_IN = 0.1


@dataclass(frozen=True)
class PanelGrid:
    """Panels of equal size in rows and columns. All sizes are in inches.

    Args:
        width_in, panel_in: width and height of a panel's axes.
        room_in: to the right of each panel, for labels at the ends of lines.
        above_in: above the first row's axes.
        gap_in: between the axes of one row and those of the next.
    """

    count: int
    columns: int
    width_in: float
    panel_in: float
    room_in: float
    above_in: float
    gap_in: float

    @property
    def _pitch_in(self) -> float:
        """From the left edge of one panel's axes to that of the next."""
        return self.width_in + _gap_x_in(self.room_in)

    @property
    def height_in(self) -> float:
        rows = -(-self.count // self.columns)
        return self.above_in + rows * self.panel_in + (rows - 1) * self.gap_in + BOTTOM_IN

    def corner(self, index: int) -> tuple[float, float]:
        """The upper left corner of a panel's axes, from that of the figure: (x, y)."""
        row, column = divmod(index, self.columns)
        return LEFT_IN + column * self._pitch_in, self.above_in + row * (self.panel_in + self.gap_in)

    @property
    def narrow(self) -> PanelGrid:
        """The same panels in as many columns as a narrow window has room for."""
        free_in = NARROW_IN - LEFT_IN - RIGHT_IN - self.room_in - self.width_in
        return replace(self, columns=max(min(1 + int(free_in / self._pitch_in), self.columns), 1))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points as `narrow`."""
        full_in = LEFT_IN + (self.columns - 1) * self._pitch_in + self.width_in + self.room_in + RIGHT_IN
        return max(full_in, NARROW_IN / MOST_MAGNIFIED) * POINTS, self.height_in * POINTS

    def shift(self, index: int) -> tuple[float, float]:
        """The way of a panel from its place here to that of `narrow`, in points: (x, y)."""
        (x, y), (new_x, new_y) = self.corner(index), self.narrow.corner(index)
        return (new_x - x) * POINTS, (new_y - y) * POINTS


def panel_grid(
    count: int,
    full_in: float,
    *,
    per_row: int,
    panel_in: float,
    above_in: float,
    title_lines: int,
    title_in: float,
    label_chars: int,
) -> PanelGrid:
    """The grid of `count` panels in a figure of this width (`longca.lab.report.look.style.Style.panels`).

    Args:
        above_in: height of a legend above the panels.
        title_in: width of the longest second line of a title, with the drawing of its mask.
    """
    room_in = SMALL_CHAR_IN * label_chars + 0.06 if label_chars else 0.0
    gap_x_in = _gap_x_in(room_in)
    free_in = full_in - LEFT_IN - RIGHT_IN - room_in
    least_in = max(title_in - room_in, LEAST_IN)
    at_most = max(int((free_in + gap_x_in) / (least_in + gap_x_in)), 1)
    columns = min(_fullest(count, per_row), max(count, 1), at_most)
    return PanelGrid(
        count,
        columns,
        width_in=min((free_in - (columns - 1) * gap_x_in) / columns, 3.2),
        panel_in=panel_in,
        room_in=room_in,
        above_in=TITLE_IN + above_in + TITLE_IN * title_lines + 0.06,
        gap_in=0.38 + TITLE_IN * title_lines,
    )


def _gap_x_in(room_in: float) -> float:
    return 0.38 + room_in


def _fullest(count: int, most: int) -> int:
    """The number of columns with the fewest empty cells in the last row; the larger number on a tie."""
    return min(range(most, max(most - 2, 1), -1), key=lambda columns: -count % columns)
