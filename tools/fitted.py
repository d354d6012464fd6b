"""Writes longca/predict/models/, by which calls are predicted, from the committed records of each device.

python -m tools.fitted
"""

from __future__ import annotations

from dataclasses import replace

from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.lab.advice.recorded import MeasuredCell, measured_cells
from longca.lab.store.hardware import load_hardware
from longca.lab.store.load import load
from longca.predict.fitted import FOLDER, FittedKernels, fit_records
from longca.predict.kernel import Interval
from tools.pages import ROOT

RECORDS = {"h100": ("h100-dense", "h100-sparse", "h100-cp"), "h200": ("h200-dense", "h200-sparse", "h200-cp")}
FEWEST = 10  # records of a strategy with a kernel, for an interval of their own


def content(device: str) -> FittedKernels:
    """The models of all kernels that a device has records of, and the residuals of strategies."""
    records = load(*(ROOT / f"reports/{device}/{name}.parquet" for name in RECORDS[device])).records
    fitted = fit_records(records, RECORDS[device])
    return replace(fitted, strategies=intervals(measured_cells(records), fitted))


def intervals(cells: list[MeasuredCell], fitted: FittedKernels) -> dict[str, Interval]:
    """The residuals of each strategy, of each with one kernel, and of each with one kernel in one direction,
    by today's kernels.

    Noisy records are left out: they tell of what delayed them.
    """
    hardware = load_hardware()
    networks, residuals = (
        {network.name: links_of(network) for network in hardware.networks},
        dict[str, list[float]](),
    )
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9
    for cell in cells:
        device = cell.device(fitted, bandwidth * PASS_EFFICIENCY)
        if device is not None and not cell.is_noisy:
            residual, name = (
                cell.seconds / cell.forecast_s(device, networks[cell.profile]) - 1,
                str(cell.record.cell.strategy),
            )
            for key in (
                name,
                method := f"{name}+{cell.record.cell.kernel}",
                f"{method} {cell.record.cell.direction}",
            ):
                residuals.setdefault(key, []).append(residual)
    return {key: Interval.of(residuals[key]) for key in sorted(residuals) if len(residuals[key]) >= FEWEST}


if __name__ == "__main__":
    for name in RECORDS:
        (FOLDER / f"{name}.json").write_text(content(name).text(), encoding="utf-8")
