"""Predictions beside measurements: what would have been predicted of records of context parallelism, with its interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.advice.recorded import measured_cell
from longca.core.errors import UserError
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.masks.mask import Mask
from longca.predict.fitted import interval_of, load_fitted
from longca.store.hardware import load_hardware

if TYPE_CHECKING:
    from longca.core.record import Record
    from longca.predict.fitted import FittedKernels


@dataclass(frozen=True)
class PredictedTime:
    """The time of one cell that was measured: predicted, with its interval."""

    ms: float
    low_ms: float
    high_ms: float


def predictions(records: Iterable[Record], fitted: FittedKernels | None = None) -> dict[tuple[str, str], PredictedTime]:
    """(cell id, run id) → the prediction, for the records of which one can be made: of the fitted GPU, with a strategy that has a forecast.

    Args:
        fitted: models of kernels; those of the project's records if not given.
    """
    fitted, hardware, masks = load_fitted() if fitted is None else fitted, load_hardware(), dict[str, Mask]()
    networks, bandwidth = {one.name: links_of(one) for one in hardware.networks}, hardware.bandwidth_gb_s(fitted.device)
    found: dict[tuple[str, str], PredictedTime] = {}
    for record in records:
        if bandwidth is None or record.environment is None or record.environment.nodes[0].gpu.get("name") != fitted.device:
            continue
        try:
            cell = measured_cell(record, masks)
            device = None if cell is None else cell.device(fitted, bandwidth * 1e9 * PASS_EFFICIENCY)
            if cell is None or device is None or cell.profile not in networks:
                continue
            made = cell.forecast_s(device, networks[cell.profile]) * 1e3
        except (UserError, ValueError):  # a plan that today's code cannot make again
            continue
        interval = interval_of(fitted, str(record.cell.strategy), record.cell.kernel, record.cell.direction) or device.kernel.residuals
        found[record.cell_id, record.run_id] = PredictedTime(made, made * (1 + interval.low), made * (1 + interval.high))
    return found
