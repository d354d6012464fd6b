"""NVML, NVIDIA's management library: facts of a GPU, and its clocks, power and temperature while it is timed. It is read, never set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PREFIX = "nvmlClocksEventReason"
_NOT_HELD_BACK = {"None", "All", "GpuIdle"}


@dataclass(frozen=True)
class Gpu:
    """One GPU in NVML."""

    nvml: Any  # the module `pynvml`
    handle: Any

    def read(self, query: str, *args: object) -> Any:
        """The answer of `nvmlDeviceGet<query>`; None where this GPU or driver has none."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{query}")(self.handle, *args)
        except (self.nvml.NVMLError, AttributeError):
            return None


@contextmanager
def open_gpu(device: torch.device) -> Iterator[Gpu | None]:
    """The GPU of a torch device; None without a GPU, library or driver, and for a slice of a GPU that NVML cannot name."""
    if device.type != "cuda":
        yield None
        return
    import torch

    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError or any error of the library: measuring goes on without NVML
        yield None
        return
    try:
        try:
            uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
            gpu = Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except pynvml.NVMLError:
            gpu = None
        yield gpu
    finally:
        pynvml.nvmlShutdown()


class Telemetry:
    """Clocks, power, temperature and reasons for slow clocks, read once after each sample; a reading takes up to a millisecond.

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
        """The known fields of `Samples`; a quantity whose reading failed once is left out."""
        quantities = {"sm_clock_mhz": (self._clock_mhz, 1), "power_w": (self._power_mw, 1000),
                      "temperature_c": (self._temperature_c, 1)}
        known = {name: tuple(value / unit for value in values)
                 for name, (values, unit) in quantities.items() if values and None not in values}
        return {**known, "clock_event_reasons": reason_names(self._gpu.nvml, self._reasons) if self._gpu else ()}


def reason_names(nvml: Any, bits: int) -> tuple[str, ...]:
    """NVML's names of the reasons, given as a bit mask, why the clock was held back; sorted."""
    names = {name.removeprefix(_PREFIX): getattr(nvml, name) for name in dir(nvml) if name.startswith(_PREFIX)}
    return tuple(sorted(name for name, bit in names.items() if name not in _NOT_HELD_BACK and bits & bit))
