"""One record as a measurement, without the derived table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.ranking.facts import COLUMNS, facts_of
from longca.ranking.measurement import Measurement
from longca.store.columns import COLUMNS as TABLE

if TYPE_CHECKING:
    from longca.store.view import View

_VALUES = {column.name: column.value for column in TABLE if column.name in COLUMNS}


def measurement_of(view: View, rate: float | None) -> Measurement | None:
    """The record as a measurement, as `longca.ranking.table.measurements` has its row.

    None without samples, and without a rate above 0.

    Args:
        rate: at the median time, in any unit; the interval follows from the samples.
    """
    if view.record.outcome.status != "ok" or not rate or not view.times_ms:
        return None
    facts = facts_of({name: value(view) for name, value in _VALUES.items()})
    return Measurement.at_rate(rate, view.times_ms, **facts)
