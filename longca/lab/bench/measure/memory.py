"""Memory of one call.

GPU: from torch's allocator. Memory that a library takes from the driver directly is not counted.
CPU: from Linux's account of the process. The high-water mark of its resident set is reset before the call and
    read after it. Memory
that the C library still holds from earlier calls would be reused without being counted, so it is given back
first. Linux counts the pages of each thread some 100 KB late, so the figure is no finer than that.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from longca.lab.studies.record import Memory

PROCESS = Path("/proc/self")
RESET_PEAK = "5"  # written to clear_refs it resets the high-water mark


def peak_memory(call: Callable[[], object], device: torch.device) -> Memory | None:
    """Peak memory of one call on this rank; None where the system does not report it."""
    gc.collect()
    return _of_gpu(call, device) if device.type == "cuda" else _of_process(call)


def resident_bytes(device: torch.device) -> int | None:
    """Memory that this rank holds now; None where the system does not report it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device)
    _trim_heap()
    try:
        return _status_bytes("VmRSS")
    except OSError:
        return None


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _of_gpu(call: Callable[[], object], device: torch.device) -> Memory:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    del result
    return Memory(peak_bytes=(peak - before,), absolute_peak_bytes=(peak,), source="cuda_allocator")


def _of_process(call: Callable[[], object]) -> Memory | None:
    _trim_heap()
    try:
        (PROCESS / "clear_refs").write_text(RESET_PEAK)
        before = _status_bytes("VmRSS")
    except OSError:
        return None
    result = call()
    peak = _status_bytes("VmHWM")
    del result
    return Memory(peak_bytes=(max(peak - before, 0),), absolute_peak_bytes=(peak,), source="resident_set")


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+) kB$", (PROCESS / "status").read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{PROCESS}/status does not give {field}")
    return int(match[1]) * 1024


def _trim_heap() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library only
    if trim is not None:
        trim(0)
