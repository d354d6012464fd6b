"""The strategies of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import Registry

if TYPE_CHECKING:
    from longca.cp import Strategy
    from longca.lab.studies.cell import Cell


def strategy_of(cell: Cell) -> Strategy:
    """The strategy of a cell of kind `cp`, with the cell's parameters. Raises UserError if there is no such
    strategy or parameter."""
    assert cell.strategy is not None
    return Registry("strategy").load(cell.strategy).with_params(cell.strategy_params)
