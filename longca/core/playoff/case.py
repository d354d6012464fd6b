"""Cases: one problem on one model of device. All cells of a case ask the same of different kernels."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from longca.core.cell import AS_RELEASED, Cell


def case_fields(cell: Cell) -> dict[str, Any]:
    """All that a kernel cell asks for but its kernel: equal for the cells of one case."""
    return {name: value for name, value in cell.model_dump().items() if name not in ("kernel", "kind")}


def case_id(cell: Cell, device: str) -> str:
    """16 hexadecimal digits that name the case of a kernel cell on a model of device."""
    canonical = json.dumps({**case_fields(cell), "device": device}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def playoff_id(case: str, run_id: str) -> str:
    """16 hexadecimal digits that name the play-off of a case in a run."""
    return hashlib.sha256(f"{case} {run_id}".encode()).hexdigest()[:16]


def may_play(cell: Cell) -> bool:
    """True for cells that can be played off.

    They are kernels whose calls are timed alone. Kernels that repeat a defect are left out. Strategies of
    context parallelism are not played off yet.
    """
    return cell.kind == "kernel" and not cell.sustained and not cell.kernel.startswith(AS_RELEASED)
