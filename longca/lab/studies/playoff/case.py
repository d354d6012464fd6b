"""Cases: one problem on one device model. The cells of a case differ only in the kernel."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from longca.core import AS_RELEASED
from longca.lab.studies.cell import Cell


def case_fields(cell: Cell) -> dict[str, Any]:
    """All fields of a kernel cell except the kernel: equal for the cells of one case."""
    return {name: value for name, value in cell.model_dump().items() if name not in ("kernel", "kind")}


def case_id(cell: Cell, device: str) -> str:
    """16 hexadecimal digits that identify the case of a kernel cell on a device model."""
    canonical = json.dumps({**case_fields(cell), "device": device}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def playoff_id(case: str, run_id: str) -> str:
    """16 hexadecimal digits that identify the play-off of a case in a run."""
    return hashlib.sha256(f"{case} {run_id}".encode()).hexdigest()[:16]


def may_play(cell: Cell) -> bool:
    """True for cells that can take part in a play-off: kernels whose calls are timed separately.

    Kernels that reproduce a defect, and strategies of context parallelism, cannot.
    """
    return cell.kind == "kernel" and not cell.sustained and not cell.kernel.startswith(AS_RELEASED)
