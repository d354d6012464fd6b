"""A stand-in for NVIDIA's driver: kernels are compiled for an H200 and launched by Triton's own code, down to
calls that do nothing.

A process without a GPU so does on the host what one with a GPU does, but for what `LEFT_OUT` names. Tensors
are on the CPU, and are neither read nor written by kernels.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

LEFT_OUT = (
    "the driver's part of launches and TMA descriptors, its look-up of addresses, CUDA's caching allocator, "
    "the launch of torch's own kernels (fills and copies are done by the CPU), the switch between devices"
)
CAPABILITY = (9, 0)
MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
# Every function that Triton's launchers ask the driver for. Handles are any number but 0; attributes are
# large enough for every kernel.
SOURCE = """
#include "cuda.h"
#include <string.h>
static long launches = 0, descriptors = 0;
long stand_in_launches(void) { return launches; }
long stand_in_descriptors(void) { return descriptors; }
CUresult cuGetErrorString(CUresult code, const char **text) { *text = "an error of the stand-in"; return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device) { *value = %(shared)d; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { *function = (CUfunction)1; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction function) { *value = 1024; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute name, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *number, CUfunction function, const CUlaunchConfig *config) { *number = 1; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute name, CUdeviceptr address) {
    *(CUdeviceptr *)value = address; return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE; return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    memset(map, 0, sizeof *map); descriptors++; return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    launches++; return CUDA_SUCCESS;
}
"""  # noqa: E501


class StandIn:
    """The driver of this process from now on."""

    def __init__(self, folder: Path) -> None:
        """Builds the library in a folder, where it stays, and makes it Triton's driver."""
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "stand_in.c"
        library = folder / "libcuda.so.1"
        source.write_text(SOURCE % {"shared": SHARED_BYTES}, encoding="utf-8")
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            sys.exit(
                "a stand-in for the driver needs a C compiler: install gcc, or run this on a machine with a "
                "GPU"
            )
        subprocess.run(
            [
                compiler,
                "-O2",
                "-shared",
                "-fPIC",
                f"-I{nvidia.include_dirs[0]}",
                "-Wl,-soname,libcuda.so.1",
                str(source),
                "-o",
                str(library),
            ],
            check=True,
        )
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)  # found by its name from now on
        knobs.nvidia.libcuda_path = str(folder)
        torch.cuda.current_device = lambda: 0
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=MULTIPROCESSORS)  # type: ignore[assignment]
        torch.cuda.get_device_capability = lambda *_: CAPABILITY
        active: Any = nvidia.CudaDriver()
        active.get_current_stream = lambda _: 0
        active.get_current_target = lambda: GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)
        driver.set_active(active)
        _take_tensors_of_the_cpu()

    @property
    def launches(self) -> int:
        """Kernels that were started so far."""
        return self._library.stand_in_launches()

    @property
    def descriptors(self) -> int:
        """TMA descriptors that were made so far."""
        return self._library.stand_in_descriptors()


def _take_tensors_of_the_cpu() -> None:
    """Lets band attention plan for a Hopper GPU, and call its kernels, with tensors of the CPU."""
    from longca.ops.band import checks, plan

    assert not knobs.runtime.interpret, "kernels are compiled here: unset TRITON_INTERPRET"
    checks.INTERPRETED = True
    choose: Callable[..., Any] = plan.choose_tiles
    plan.choose_tiles = lambda head_dim, _, **how: choose(head_dim, CAPABILITY, **how)
