"""The records behind the points of the study's figures: one of each cell and device, and only those shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

OF_DEVICE = "@"  # between a cell and the number of its device


class ShownRecords(Mapping[str, int]):
    """Name of a cell → its row among the page's records, numbered in the order in which figures ask.

    A name is a cell's id, for its first record on any device, or that with the number of a device: two models
    of GPU measure the same cells.

    Args:
        table: of all records, in their order.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self._table = table
        self._numbers = {device: number for number, device in enumerate(dict.fromkeys(table.device))}
        self._places: dict[str, int] = {}
        for place, (cell_id, device) in enumerate(zip(table.cell_id, table.device, strict=True)):
            self._places.setdefault(cell_id, place)
            self._places.setdefault(self._name(cell_id, device), place)
        self._rows: dict[int, int] = {}

    @property
    def table(self) -> pd.DataFrame:
        """The records that were asked for, by their rows."""
        return self._table.iloc[list(self._rows)].reset_index(drop=True)

    def named(self, data: pd.DataFrame) -> pd.DataFrame:
        """An exhibit's data, the cells of each row named as those of its device if it has one."""
        if "device" not in data:
            return data
        columns = [name for name in data if str(name).startswith("cell_ids")]
        return data.assign(
            **{
                str(name): [
                    " ".join(self._name(cell_id, device) for cell_id in str(cells).split())
                    for cells, device in zip(data[name], data.device, strict=True)
                ]
                for name in columns
            }
        )

    def __getitem__(self, name: str) -> int:
        return self._rows.setdefault(self._places[name], len(self._rows))

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _name(self, cell_id: str, device: str) -> str:
        number = self._numbers.get(device)
        return cell_id if number is None else f"{cell_id}{OF_DEVICE}{number}"
