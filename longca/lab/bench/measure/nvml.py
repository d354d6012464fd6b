"""NVML, NVIDIA's management library: facts of a GPU, and its clocks, power and temperature during timing.
Settings are only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PREFIX = "nvmlClocksEventReason"
_NOT_HELD_BACK = {"None", "All", "GpuIdle"}
QUANTITIES = {"sm_clock_mhz": 1, "power_w": 1000, "temperature_c": 1}
"""fields of `Samples`, and the units of NVML in each of their units"""


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
    """The GPU of a torch device; None without a GPU, library or driver, and for a slice of a GPU that NVML
    cannot name."""
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


def visible_gpus() -> list[str] | None:
    """Name and UUID of each GPU of this machine, without torch; None without one, library or driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError or any error of the library
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [f"{pynvml.nvmlDeviceGetName(each)} {pynvml.nvmlDeviceGetUUID(each)}" for each in handles]
        return names or None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


class Telemetry:
    """Clocks, power, temperature and reasons for slow clocks, read while a call runs; a reading takes up to a
    millisecond.

    A call may be read several times: it has the means of its readings. Without a GPU that NVML can read,
    nothing is collected.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._calls: list[dict[str, float | None]] = []
        self._readings: list[tuple[Any, ...]] = []  # of the call that runs
        self._reasons = 0

    def read(self) -> None:
        """Read the GPU once."""
        if self._gpu is None:
            return
        queries = (
            ("ClockInfo", self._gpu.nvml.NVML_CLOCK_SM),
            ("PowerUsage",),
            ("Temperature", self._gpu.nvml.NVML_TEMPERATURE_GPU),
        )
        self._readings.append(tuple(self._gpu.read(*query) for query in queries))
        self._reasons |= self._gpu.read("CurrentClocksEventReasons") or 0

    def end_call(self) -> float | None:
        """End the readings of a call. Its mean SM clock in MHz; None where there is none."""
        if self._gpu is None or not self._readings:
            return None
        means = [
            None if None in values else sum(values) / len(values)
            for values in zip(*self._readings, strict=True)
        ]
        self._readings = []
        self._calls.append(dict(zip(QUANTITIES, means, strict=True)))
        return means[0]

    def forget(self) -> None:
        """Forget all calls so far: they are no samples."""
        self._calls = []
        self._reasons = 0

    def fields(self) -> dict[str, Any]:
        """The known fields of `Samples`; a quantity whose reading failed once is left out."""
        if self._gpu is None:
            return {"clock_event_reasons": ()}
        known: dict[str, tuple[Any, ...]] = {}
        for name, unit in QUANTITIES.items():
            values = tuple(value / unit for call in self._calls if (value := call[name]) is not None)
            if values and len(values) == len(self._calls):
                known[name] = values
        return {**known, "clock_event_reasons": reason_names(self._gpu.nvml, self._reasons)}


def reason_names(nvml: Any, bits: int) -> tuple[str, ...]:
    """NVML's names of the reasons, given as a bit mask, why the clock was held back; sorted."""
    names = {
        name.removeprefix(_PREFIX): getattr(nvml, name) for name in dir(nvml) if name.startswith(_PREFIX)
    }
    return tuple(sorted(name for name, bit in names.items() if name not in _NOT_HELD_BACK and bits & bit))
