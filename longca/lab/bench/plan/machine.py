"""The machine that a plan is made for: this one, or a model of GPU that config/hardware.yaml lists."""

from __future__ import annotations

from dataclasses import dataclass

from longca.core import load_hardware
from longca.lab.bench.measure.environment import cpu_name, num_cores
from longca.lab.bench.workers.pool import MAX_CPU_RANKS

CPU_FLOPS = 25e9  # of attention in bf16 on one core of a server, sustained: the middle of the quick study
UNKNOWN_GPU_FLOPS = 300e12  # peak of a GPU that config/hardware.yaml does not list


@dataclass(frozen=True)
class Machine:
    """A machine, as far as a plan asks about it."""

    name: str
    device_type: str
    flops: float
    """peak of one device; of a CPU what attention sustains on all its cores"""
    memory_bytes: int | None
    """of one device; None where it is not known"""
    num_devices: int | None
    """None: as many as are asked for"""
    is_here: bool
    note: str = ""

    def too_few(self, world: int) -> str | None:
        """The reason why so many ranks cannot run on it; None if they can."""
        most = MAX_CPU_RANKS if self.device_type == "cpu" else self.num_devices
        return None if most is None or world <= most else f"{world} ranks: this machine runs at most {most}"


def this_machine(device_type: str) -> Machine:
    """The machine that this process runs on, with its GPUs or its CPU."""
    if device_type == "cpu":
        import psutil

        name = f"this machine's CPU ({cpu_name()}, {num_cores()} cores)"
        return Machine(
            name, "cpu", CPU_FLOPS * num_cores(), psutil.virtual_memory().total, None, is_here=True
        )
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    name = pynvml.nvmlDeviceGetName(handle)
    count = pynvml.nvmlDeviceGetCount()
    known = load_hardware().find(name)
    note = (
        ""
        if known
        else (
            f"config/hardware.yaml does not list it: a peak of {UNKNOWN_GPU_FLOPS / 1e12:.0f} TFLOP/s is "
            f"assumed"
        )
    )
    return Machine(
        f"this machine's {name}",
        "cuda",
        known.peak_tflops.value * 1e12 if known else UNKNOWN_GPU_FLOPS,
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        count,
        is_here=True,
        note=note,
    )


def gpu_machine(name: str) -> Machine:
    """As many GPUs of this model as are asked for. Raises UserError as `Hardware.named` does."""
    model = load_hardware().named(name)
    memory_bytes = round(model.memory_gb.value * 1e9) if model.memory_gb else None
    return Machine(model.name, "cuda", model.peak_tflops.value * 1e12, memory_bytes, None, is_here=False)
