"""Writes longca/predict/models/, by which calls are predicted, from the committed records of each device.

    python -m tools.fitted

It takes some minutes of one core. The same records give the same files on any machine.
"""

from __future__ import annotations

from dataclasses import replace

from longca.core import load_hardware
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.lab.advice.recorded import MeasuredCell, measured_cells
from longca.lab.store.load import load
from longca.lab.studies.fitting import fit_records, has_rests
from longca.predict import Interval, part_kind
from longca.predict.fitted import FOLDER, FittedKernels
from tools.pages import ROOT

RECORDS = {
    # Without rests are most records, and so are those that are fitted: with rests there are neither block
    # masks nor as many KV heads as query heads. What they replaced is fitted, too.
    "h100": ("h100-dense", "h100-sparse", "h100-cp", "rested/h100-dense_without_rests"),
    "h200": (
        "h200-dense",
        "h200-sparse",
        "h200-cp",
        "rested/h200-dense_without_rests",
        "rested/h200-cp_without_rests",
    ),
}
FEWEST = 10  # records of a strategy with a kernel, for an interval of their own


def content(device: str) -> FittedKernels:
    """The models of all kernels that a device has records of, and the residuals of strategies."""
    records = load(*(ROOT / f"reports/{device}/{name}.parquet" for name in RECORDS[device])).records
    fitted = fit_records(records, RECORDS[device])
    cells = measured_cells(records)
    return replace(fitted, strategies=intervals(cells, fitted), parts=parts(cells))


def parts(cells: list[MeasuredCell]) -> dict[str, tuple[str, ...]]:
    """The kinds of masks in whose parts each kernel ran under a strategy of this project."""
    kinds: dict[str, set[str]] = {}
    for cell in cells:
        if cell.work is not None:
            kinds.setdefault(cell.record.cell.kernel, set()).add(part_kind(cell.mask.traits))
    return {kernel: tuple(sorted(kinds[kernel])) for kernel in sorted(kinds)}


def intervals(cells: list[MeasuredCell], fitted: FittedKernels) -> dict[str, Interval]:
    """The residuals of each strategy, of each with one kernel, and of each with one kernel in one direction,
    by today's kernels.

    Noisy records are left out: they tell of what delayed them. So are records of another protocol than most
    kernels are fitted on.
    """
    hardware = load_hardware()
    networks = {network.name: links_of(network) for network in hardware.networks}
    residuals = dict[str, list[float]]()
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9
    for cell in cells:
        device = cell.device(fitted, bandwidth * PASS_EFFICIENCY)
        if device is not None and not cell.is_noisy and has_rests(cell.record) == fitted.rests:
            residual = cell.seconds / cell.forecast_s(device, networks[cell.profile]) - 1
            name = str(cell.record.cell.strategy)
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
