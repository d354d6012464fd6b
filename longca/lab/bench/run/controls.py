"""Each device's own controls: a device that measures cells of a study measures the study's controls, too,
unless they are known for it.

One of six GPUs may reach other rates than the other five. `longca.lab.store.view.Ceilings` compares each
GPU with its own controls.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from longca.core import Registry, UserError
from longca.lab.store import CellStore
from longca.lab.studies import Cell, Study


class DeviceControls:
    """The controls of a study, and those of them that a store has of one device."""

    def __init__(self, study: Study) -> None:
        self.cells: list[Cell] = []
        with suppress(UserError):  # whoever asks for its cells learns why it has none
            self.cells = controls_among(study.known_cells)
        self._ids = {cell.cell_id for cell in self.cells}

    def __contains__(self, cell: Cell) -> bool:
        return cell.cell_id in self._ids

    def due(
        self,
        todo: Sequence[Cell],
        store: CellStore,
        uuid: str,
        versions: Mapping[str, str],
        retry: AbstractSet[str] = frozenset(),
    ) -> list[Cell]:
        """The controls that a run measures in addition to its own cells: none where it has nothing but
        controls to do.

        Args:
            todo: the cells that the run measures anyway.
            uuid: of the device; empty for a CPU.
            versions: cell_id → method version of today; what was measured by another one is not known.
            retry: statuses that are measured again.
        """
        asked = {cell.cell_id for cell in todo}
        if asked <= self._ids:
            return []
        known = {
            cell_id
            for cell_id, record in store.read_controls(device_key(uuid)).items()
            if record.method_version == versions.get(cell_id) and record.outcome.status not in retry
        }
        return [cell for cell in self.cells if cell.cell_id not in asked | known]


def controls_among(cells: Iterable[Cell]) -> list[Cell]:
    """The cells whose kernels are controls. Kernels that cannot be loaded are none."""
    is_control: dict[str, bool] = {}
    controls = []
    for cell in cells:
        if cell.kernel not in is_control:
            is_control[cell.kernel] = False
            with suppress(Exception):  # a plug-in may raise anything; the run names it
                is_control[cell.kernel] = Registry("kernel").load(cell.kernel).family == "control"
        if cell.kind == "kernel" and is_control[cell.kernel]:
            controls.append(cell)
    return controls


def device_key(uuid: str) -> str:
    """A key that no other device has: its UUID, or for a CPU the name of this machine."""
    return uuid or platform.node()
