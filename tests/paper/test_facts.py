"""The study's grid beside the records, on each GPU model by itself."""

import pandas as pd

from longca.core.study import load_study
from longca.paper.facts import STUDY, coverage


def test_gpus_settle_the_grid_each_by_itself() -> None:
    """A cell that two models have is counted for both, and for neither twice."""
    cells = [cell for cell in load_study(STUDY).cells() if cell.kind == "kernel" and "density" not in cell.mask_params]
    rows = [(cells[0], "NVIDIA H100", "ok"), (cells[1], "NVIDIA H100", "oom"), (cells[1], "NVIDIA H100", "ok"),
            (cells[0], "NVIDIA H200", "ok")]
    table = pd.DataFrame([{"cell_id": cell.cell_id, "device": device, "status": status} for cell, device, status in rows])
    found = coverage(table)
    dense = {one.device: one.parts[0] for one in found.devices}
    assert list(dense) == ["H100", "H200"]
    assert {device: (part.settled, part.timed) for device, part in dense.items()} == {"H100": (2, 2), "H200": (1, 1)}
    assert {part.asked for part in dense.values()} == {len(cells)}
    assert "records of H100 settle" in found.finding and "records of H200 settle" in found.finding


def test_records_of_other_cells_settle_nothing() -> None:
    found = coverage(pd.DataFrame([{"cell_id": "of another study", "device": "NVIDIA H100", "status": "ok"}]))
    assert found.devices == () and found.finding == "No record is of a cell of the study's grid"
