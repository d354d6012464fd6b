"""The controls of a page: calls of known length, and of known work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.store.text import NONE, format_bytes, is_missing, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.series import Unit


@dataclass(frozen=True)
class ControlRow:
    """A control: its texts as the page shows them, "" for those that it lacks."""

    cell_id: str
    name: str
    """a wait's length, or the method"""
    device: str
    size: str
    status: str
    reason: str
    rate: str
    share_of_peak: str
    time: str
    quartiles: str
    num_samples: str
    error: str
    allowed: str


def waits(table: pd.DataFrame) -> list[ControlRow]:
    """Controls of known duration: the measured time, and its error."""
    chosen = table[table.nominal_ms.notna()].sort_values(["device", "nominal_ms"], kind="stable")
    return [_control(row, f"{row['nominal_ms']:g} ms", "", "") for row in chosen.to_dict("records")]


def ceilings(table: pd.DataFrame, unit: Unit) -> list[ControlRow]:
    """Controls of known work: the highest rates of the device.

    Args:
        unit: the unit of the page's rates.
    """
    controls = table[table.is_control.astype(bool) & table.nominal_ms.isna()]
    chosen = controls.sort_values(
        ["method", "device", "seqlen"], ascending=[False, True, True], kind="stable"
    )
    return [_ceiling(row, unit) for row in chosen.to_dict("records")]


def _ceiling(row: dict[str, Any], unit: Unit) -> ControlRow:
    traffic = row["traffic_bytes"]
    copied = row["gb_per_s"]
    length = format_length(int(row["seqlen"]))
    product = f"{length} × {length}, {row['dtype']}"
    size = product if is_missing(traffic) else f"{format_bytes(traffic)} read and written"
    if not is_missing(copied):
        return _control(row, row["method"], size, f"{number(copied, 4)} GB/s")
    rate = "" if is_missing(row["tflops"]) else f"{number(row['tflops'] * unit.factor, 4)} {unit.name}"
    return _control(row, row["method"], size, rate)


def _control(row: dict[str, Any], name: str, size: str, rate: str) -> ControlRow:
    def text(column: str, written: Callable[[float], str]) -> str:
        return "" if is_missing(row[column]) else written(float(row[column]))

    first, last = (text(column, lambda value: number(value, 4)) for column in ("time_ms_q1", "time_ms_q3"))
    return ControlRow(
        cell_id=row["cell_id"],
        name=name,
        device=row["device"],
        size=size,
        status=row["status"],
        reason=row["reason"],
        rate=rate,
        share_of_peak=text("peak_percent", lambda value: percent(value / 100)) or NONE,
        time=text("time_ms_median", lambda value: f"{number(value, 4)} ms"),
        quartiles=f"{first}–{last} ms" if first else "",
        num_samples=text("num_samples", lambda value: str(int(value))),
        error=text("error", percent) or NONE,
        allowed=text("error_budget", percent) or NONE,
    )
