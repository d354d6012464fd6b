"""One record as a measurement, without the derived table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.ranking.measurement import Measurement

if TYPE_CHECKING:
    from longca.store.view import View


def measurement_of(view: View, rate: float | None) -> Measurement | None:
    """The record as a measurement, as `longca.ranking.table.measurements` has its row.

    None without samples, and without a rate above 0.

    Args:
        rate: at the median time, in any unit; the interval follows from the samples.
    """
    if view.record.outcome.status != "ok" or not rate or not view.times_ms:
        return None
    cell, record = view.cell, view.record
    facts = {
        "device": view.device,
        "unit": view.unit,
        "run": record.run_id,
        "playoff": record.playoff or "",
        "rounds": tuple(map(float, record.turns.rounds)) if record.turns else (),
        "seed": cell.seed,
        "cell_id": record.cell_id,
        "version": record.method_version,
        "noise": view.noise or 0.0,
        "disturbed": bool(view.disturbance),
        "rests": bool(view.rests),
    }
    timed = Measurement.timed(view.times_ms)
    low, high = rate * timed.low / timed.rate, rate * timed.high / timed.rate
    return Measurement(rate, low, high, times_ms=view.times_ms, **facts)
