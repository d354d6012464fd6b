"""One record as a measurement, without the derived table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.lab.ranking.facts import facts_of_view
from longca.lab.ranking.measurement import Measurement

if TYPE_CHECKING:
    from longca.lab.store import View


def measurement_of(view: View, rate: float | None) -> Measurement | None:
    """The record as a measurement, as `longca.lab.ranking.table.measurements` has its row.

    None without samples, and without a rate above 0.

    Args:
        rate: at the median time, in any unit; the interval follows from the samples.
    """
    if view.record.outcome.status != "ok" or not rate or not view.times_ms:
        return None
    return Measurement.at_rate(rate, view.times_ms, **facts_of_view(view))
