"""Errors of parts of a tensor: single heads, single columns and tiles of rows.

An error in one of 64 heads counts an eighth in the norm of all heads, and one in one of 128 columns less than
a tenth. So each part has a budget of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from longca.lab.bench.check.scope import ROWS_PER_TILE

LEAST_MULTIPLE = 1.5  # times the budget, for a part of many rows
# for a column of many rows: where all keys weigh alike, all rows have one value in a column, and one error
LEAST_OF_COLUMN = 6.0
ROW_MULTIPLE = 16.0  # for a single one: a few rows of a right result may be off by more than usual
TINY = torch.finfo(torch.float64).tiny


@dataclass
class _Sums:
    """Sums of squares, over all but the named axes, and the number of rows in them."""

    error: torch.Tensor
    emulation: torch.Tensor
    reference: torch.Tensor
    size: torch.Tensor
    num_rows: torch.Tensor

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(mine + others for mine, others in zip(self._all(), other._all(), strict=True)))

    def over(self, axis: int, *, of_rows: bool) -> _Sums:
        """The sums over one axis more.

        Args:
            of_rows: that axis has other rows; else other columns of the same.
        """
        num_rows = self.num_rows.sum(axis) if of_rows else self.num_rows.amax(axis)
        squares = (self.error, self.emulation, self.reference, self.size)
        error, emulation, reference, size = (x.sum(axis) for x in squares)
        return _Sums(error, emulation, reference, size, num_rows)

    def ratios(self, multiple: float, unit: float, least: float) -> torch.Tensor:
        """Ratios of the errors to what is allowed: `least` times the budget for many rows."""
        size = torch.maximum(self.reference, self.size).sqrt()
        more = (ROW_MULTIPLE - least) / self.num_rows.clamp_min(1.0).sqrt()
        allowed = (least + more) * (multiple * self.emulation.sqrt() + unit * size)
        return self.error.sqrt() / allowed.clamp_min(TINY)

    def _all(self) -> list[torch.Tensor]:
        return [self.error, self.emulation, self.reference, self.size, self.num_rows]


@dataclass(frozen=True)
class TensorPlace:
    """The place of some rows of some heads in a tensor."""

    heads: tuple[int, ...]
    rows: Sequence[int]
    num_rows: int
    """of the whole tensor"""
    counted: torch.Tensor | None = None
    """of which rows are compared, (heads, rows); all if None"""


class PartErrors:
    """Errors of the parts of one tensor, summed over chunks.

    Args:
        multiple: times the error of the emulation, of a budget.
        unit: times the size, of a budget.
    """

    def __init__(self, multiple: float, unit: float) -> None:
        self._multiple = multiple
        self._unit = unit
        self._columns: dict[tuple[int, ...], _Sums] = {}
        self._tiles: dict[tuple[int, ...], _Sums] = {}

    def add(
        self,
        place: TensorPlace,
        squares: Sequence[torch.Tensor],
        of_rows: Sequence[torch.Tensor],
        row_size: torch.Tensor,
    ) -> None:
        """Add one chunk.

        Args:
            squares: of the error, the emulation's error and the reference, (…, rows, D) in float64.
            of_rows: their sums over D, (…, rows).
            row_size: of each row, (…, rows).
        """
        shape = len(place.heads), len(place.rows)
        squares = [x.reshape(*shape, -1) for x in squares]
        size = row_size.double().square().reshape(shape)
        counted = torch.ones_like(size) if place.counted is None else place.counted.reshape(shape).to(size)
        head_dim = squares[0].shape[-1]
        of_columns = [x.sum(1) for x in squares] + [
            x.sum(1, keepdim=True).expand(-1, head_dim) for x in (size / head_dim, counted)
        ]
        tiles = _indices(place.rows, size.device) // ROWS_PER_TILE
        of_tiles = [
            x.new_zeros(shape[0], -(-place.num_rows // ROWS_PER_TILE)).index_add_(1, tiles, x)
            for x in (*(x.reshape(shape) for x in of_rows), size, counted)
        ]
        for sums, parts in ((self._columns, of_columns), (self._tiles, of_tiles)):
            now = _Sums(*parts)
            sums[place.heads] = sums[place.heads] + now if place.heads in sums else now

    def worst(self) -> tuple[float, str]:
        """The largest ratio of a part's error to what is allowed there, and the part: "rows 64 to 127 of head
        3". If several kinds of parts are wrong, the first kind: heads before their columns."""
        worst = 0.0, ""
        for ratios, text in self._ratios():
            if ratios.numel() and float(ratios.max()) > worst[0]:
                index = int(ratios.argmax())
                worst = float(ratios.max()), text(index)
                if worst[0] > 1.0:
                    break
        return worst

    def _ratios(self) -> Iterator[tuple[torch.Tensor, _Text]]:
        if not self._columns:
            return
        heads = [head for part in self._columns for head in part]
        columns, tiles = (_joined(list(sums.values())) for sums in (self._columns, self._tiles))
        for sums, text in (
            (columns.over(1, of_rows=False), _Text(heads)),
            (columns.over(0, of_rows=True), _Text([], "column")),
            (tiles.over(0, of_rows=True), _Text([], "rows")),
            (columns, _Text(heads, "column", columns.error.shape[1])),
            (tiles, _Text(heads, "rows", tiles.error.shape[1])),
        ):
            if text.other != "column" or columns.error.shape[1] > 1:  # an LSE has one
                least = LEAST_OF_COLUMN if text.other == "column" else LEAST_MULTIPLE
                yield sums.ratios(self._multiple, self._unit, least).flatten(), text


@dataclass(frozen=True)
class _Text:
    """The words for one of some parts, by its number: of heads, of columns or tiles, or of both."""

    heads: list[int]
    other: str = ""
    num_others: int = 0

    def __call__(self, index: int) -> str:
        head, number = (0, index) if not self.heads else divmod(index, self.num_others or 1)
        words = [] if not self.other else [f"column {number}" if self.other == "column" else _rows(number)]
        return " of ".join(words + ([f"head {self.heads[head]}"] if self.heads else []))


def _rows(tile: int) -> str:
    return f"rows {tile * ROWS_PER_TILE} to {(tile + 1) * ROWS_PER_TILE - 1}"


def _joined(parts: list[_Sums]) -> _Sums:
    return _Sums(*(torch.cat(tensors) for tensors in zip(*(part._all() for part in parts), strict=True)))


def _indices(rows: Sequence[int], device: torch.device) -> torch.Tensor:
    if isinstance(rows, range):
        return torch.arange(rows.start, rows.stop, rows.step, device=device)
    return torch.tensor(rows, device=device)
