"""The masks of a study as plain rows. Measuring jobs compare their own masks with these rows."""

import time
from collections.abc import Iterable
from typing import Any

from longca.lab.studies.cell import Cell
from longca.masks.build import cell_mask, mask_name


def mask_table(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row for each distinct mask of the cells: name, arguments, digest, area, and build_ms."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        key = mask_name(cell)
        if key in rows:
            continue
        start = time.perf_counter()
        mask = cell_mask(cell)
        build_ms = (time.perf_counter() - start) * 1e3
        rows[key] = {
            "key": key,
            "mask": cell.mask,
            **cell.mask_key,
            "digest": mask.digest,
            "area": mask.area,
            "density": mask.density,
            "num_groups": mask.num_groups,
            **mask.drawn,
            "build_ms": round(build_ms, 3),
        }
    return list(rows.values())
