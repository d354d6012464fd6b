"""NVIDIA's management library, where there is one: read, never set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML knows it."""

    nvml: Any  # the module `pynvml`
    handle: Any

    def read(self, query: str, *args: object) -> Any:
        """Answer of `nvmlDeviceGet<query>`; None where this GPU or driver does not say."""
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{query}")(self.handle, *args)
        except (self.nvml.NVMLError, AttributeError):
            return None


@contextmanager
def open_gpu(device: torch.device) -> Iterator[Gpu | None]:
    """The GPU behind a torch device; None without a GPU, library or driver, and for slices that NVML cannot name."""
    if device.type != "cuda":
        yield None
        return
    import torch

    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or any of the library's own: this is beside the measuring and must not stop it
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
