"""Predictions beside measurements: what would have been predicted of records of context parallelism, with its
interval."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import UserError, load_hardware
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.lab.advice.recorded import measured_cell
from longca.lab.studies.fitting import device_of
from longca.masks import Mask
from longca.predict.fitted import fitted_on, interval_of

if TYPE_CHECKING:
    from longca.lab.studies import Record


@dataclass(frozen=True)
class PredictedTime:
    """The time of one cell that was measured: predicted, with its interval."""

    ms: float
    low_ms: float
    high_ms: float


def predictions(records: Iterable[Record]) -> dict[tuple[str, str], PredictedTime]:
    """(cell id, run id) → the prediction, for the records that can be predicted: a strategy with a forecast
    ran on a GPU that is fitted."""
    hardware = load_hardware()
    masks = dict[str, Mask]()
    found = dict[tuple[str, str], PredictedTime]()
    networks = {network.name: links_of(network) for network in hardware.networks}
    models_of = functools.cache(lambda name: fitted_on({name}))
    for record in records:
        models = models_of(device_of(record))
        bandwidth = hardware.bandwidth_gb_s(device_of(record))
        if models is None or bandwidth is None:
            continue
        try:
            cell = measured_cell(record, masks)
            device = None if cell is None else cell.device(models, bandwidth * 1e9 * PASS_EFFICIENCY)
            if cell is None or device is None or cell.profile not in networks:
                continue
            made = cell.forecast_s(device, networks[cell.profile]) * 1e3
        except (UserError, ValueError):  # a plan that today's code cannot make again
            continue
        asked = record.cell
        interval = interval_of(
            models, str(asked.strategy), asked.kernel, asked.direction, device.kernel.residuals
        )
        found[record.cell_id, record.run_id] = PredictedTime(
            made, made * (1 + interval.low), made * (1 + interval.high)
        )
    return found
