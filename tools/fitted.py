"""Writes longca/predict/fitted.json, by which calls are predicted, from the committed records of one device.

    python -m tools.fitted
"""

from __future__ import annotations

from dataclasses import replace

from longca.advice.recorded import MeasuredCell, measured_cells
from longca.core.record import Record
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.predict.fitted import FILE, FittedKernels, fit_records
from longca.predict.kernel import Interval
from longca.store.hardware import load_hardware
from longca.store.load import load
from tools.pages import ROOT

RECORDS = ("h200-dense", "h200-sparse", "h200-cp")
OLDER_BACKWARD = "50cde0b"  # of this commit are most 4-GPU records backward; `band` then added dQ in an order that some masks made slow
FEWEST = 10  # records of a strategy with a kernel, for an interval of their own


def content() -> FittedKernels:
    """The models of all kernels, and the residuals of strategies."""
    records = load(*(ROOT / f"reports/h200/{name}.parquet" for name in RECORDS)).records
    fitted = fit_records(records, RECORDS)
    return replace(fitted, strategies=intervals(measured_cells(records), fitted))


def intervals(cells: list[MeasuredCell], fitted: FittedKernels) -> dict[str, Interval]:
    """The residuals of each strategy, of each with one kernel, and of each with one kernel in one direction, by today's kernels."""
    hardware = load_hardware()
    networks, found = {one.name: links_of(one) for one in hardware.networks}, dict[str, list[float]]()
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9
    for cell in cells:
        device = cell.device(fitted, bandwidth * PASS_EFFICIENCY)
        if device is not None and not is_older_backward(cell.record):
            residual, name = cell.seconds / cell.forecast_s(device, networks[cell.profile]) - 1, str(cell.record.cell.strategy)
            for key in (name, method := f"{name}+{cell.record.cell.kernel}", f"{method} {cell.record.cell.direction}"):
                found.setdefault(key, []).append(residual)
    return {key: Interval.of(found[key]) for key in sorted(found) if len(found[key]) >= FEWEST}


def is_older_backward(record: Record) -> bool:
    """It ran `band`'s backward as it was before the one that today's kernels are fitted on."""
    sha = record.environment.source.git_sha if record.environment is not None else None
    return record.cell.direction == "bwd" and record.cell.kernel == "band" and (sha or "").startswith(OLDER_BACKWARD)


if __name__ == "__main__":
    FILE.write_text(content().text(), encoding="utf-8")
