"""One side's result for a cell: the facts of a record or of a published rate for a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from longca.core import Hardware
from longca.lab.published import PublishedRate
from longca.lab.ranking import Measurement, measurement_of
from longca.lab.store import View
from longca.lab.studies import Cell, Record


class Spread(NamedTuple):
    """A number and its displayed spread: quartiles of samples, or the reading error of a published number."""

    low: float
    middle: float
    high: float

    def scaled(self, factor: float) -> Spread:
        return Spread(self.low * factor, self.middle * factor, self.high * factor)


@dataclass(frozen=True)
class Side:
    """A result for one cell."""

    status: str
    reason: str
    """reason for a missing number; "" for ok"""
    device: str
    """model of the GPU; "" if unknown"""
    cell: Cell | None = None
    """the requested cell; None for a published rate"""
    digest: str = ""
    """digest of the sampled mask; "" if unknown"""
    time_ms: Spread | None = None
    """quartiles of a call's times"""
    tflops: Spread | None = None
    """rate per device; None for a copy or a call of known length"""
    peak_tflops: float | None = None
    """of the GPU in the cell's dtype"""
    is_control: bool = False
    rests: bool | None = None
    """True if the GPU rested after each call; None if unknown or not applicable"""
    source: str = ""
    """short name of the source of a published rate"""
    note: str = ""
    measurement: Measurement | None = None
    """the point for ranking, by rate if there is one, else by calls per second; None without a number"""

    @property
    def share(self) -> Spread | None:
        """Rate over the GPU's peak."""
        return self.tflops.scaled(1 / self.peak_tflops) if self.tflops and self.peak_tflops else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reason": self.reason,
            "device": self.device,
            "cell_id": self.cell.cell_id if self.cell else None,
            "source": self.source,
            "time_ms": self.time_ms and self.time_ms._asdict(),
            "tflops_per_device": self.tflops and self.tflops._asdict(),
            "share_of_peak": self.share and self.share._asdict(),
        }


def of_record(record: Record, hardware: Hardware) -> Side:
    """The facts of a record."""
    view = View(record, hardware)
    time_ms = tflops = None
    _, first, middle, third = view.quartiles_ms
    if first and middle and third:  # a coarse clock may measure 0
        time_ms = Spread(first, middle, third)
        rates = [view.per_device(time) for time in (third, middle, first)]  # longer times are slower rates
        tflops = Spread(*(rate for rate in rates if rate is not None)) if None not in rates else None
    measurement = measurement_of(view, tflops.middle if tflops else 1e3 / middle) if middle else None
    return Side(
        status=record.outcome.status,
        reason=view.reason,
        device=view.device,
        cell=record.cell,
        digest=record.mask.digest if record.mask else "",
        time_ms=time_ms,
        tflops=tflops,
        peak_tflops=view.peak_tflops,
        is_control=view.is_control,
        rests=view.rests,
        measurement=measurement,
    )


def of_published(rate: PublishedRate, hardware: Hardware) -> Side:
    """The facts of a published rate."""
    value = rate.tflops_per_device
    off = rate.plus_minus
    measurement = Measurement(value, value - off, value + off, rate.hardware)
    return Side(
        status="ok",
        reason="",
        device=rate.hardware,
        tflops=Spread(value - off, value, value + off),
        peak_tflops=hardware.peak_tflops(rate.hardware, rate.dtype),
        source=rate.title,
        note=rate.note,
        measurement=measurement,
    )
