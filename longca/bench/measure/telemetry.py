"""What the GPU was doing beside the samples: clocks, power, temperature, and why it slowed down."""

from __future__ import annotations

from typing import Any

from longca.bench.measure.nvml import Gpu

_PREFIX = "nvmlClocksEventReason"
_NOT_HELD_BACK = {"None", "All", "GpuIdle"}


class Telemetry:
    """Readings, one beside each sample. Read between samples: a reading takes up to a millisecond.

    Without a GPU that NVML can read, nothing is collected.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._clock_mhz: list[Any] = []
        self._power_mw: list[Any] = []
        self._temperature_c: list[Any] = []
        self._reasons = 0

    def read(self) -> None:
        if self._gpu is None:
            return
        self._clock_mhz.append(self._gpu.read("ClockInfo", self._gpu.nvml.NVML_CLOCK_SM))
        self._power_mw.append(self._gpu.read("PowerUsage"))
        self._temperature_c.append(self._gpu.read("Temperature", self._gpu.nvml.NVML_TEMPERATURE_GPU))
        self._reasons |= self._gpu.read("CurrentClocksEventReasons") or 0

    def fields(self) -> dict[str, tuple[Any, ...]]:
        """The fields of `Samples` that are known; a quantity that failed once is left out whole."""
        quantities = {"sm_clock_mhz": (self._clock_mhz, 1), "power_w": (self._power_mw, 1000),
                      "temperature_c": (self._temperature_c, 1)}
        known = {name: tuple(value / unit for value in values)
                 for name, (values, unit) in quantities.items() if values and None not in values}
        return {**known, "clock_event_reasons": reason_names(self._gpu.nvml, self._reasons) if self._gpu else ()}


def reason_names(nvml: Any, bits: int) -> tuple[str, ...]:
    """NVML's names of the reasons in a bit mask for which the clock was held back, sorted."""
    names = {name.removeprefix(_PREFIX): getattr(nvml, name) for name in dir(nvml) if name.startswith(_PREFIX)}
    return tuple(sorted(name for name, bit in names.items() if name not in _NOT_HELD_BACK and bits & bit))
