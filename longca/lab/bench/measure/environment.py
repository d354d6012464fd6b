"""The environment of a measurement: machine, GPU, versions and variables. It is read in the measuring
process; nothing is set."""

from __future__ import annotations

import functools
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.lab.bench.measure.nvml import Gpu, open_gpu
from longca.lab.studies import Node, Software
from longca.lab.studies.checkout import IMAGES

if TYPE_CHECKING:
    import torch

NVIDIA_DRIVER = Path("/dev/nvidiactl")  # is there where a driver of GPUs is loaded
CONTAINER = "LONGCA_CONTAINER"  # digest of the image, set by the workflow
ENTERED = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # the image's file, set in there
LOCK = "LONGCA_LOCK"  # digest of the lock that an image was built from, set in the image
LOCK_FILE = "longca-lock"  # the same in a virtual environment, written by tools/setup.py
TORCH_FILE = "longca-torch"  # digest of the file that its torch was installed from, likewise
TORCH_WHEEL = "torch wheel"  # its name among the packages
PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "xformers",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "flashinfer-python",
    "fastvideo-kernel",
    "vsa",
    "ring-flash-attn",
    "yunchang",
    "transformer-engine",
    "apache-tvm-ffi",
    "quack-kernels",
)
ENV = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "MALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_COMPILE_DISABLE",
    "TRITON_INTERPRET",
    "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_USE_CUDA_MEMCPY",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)


def node(device: torch.device) -> Node:
    """This machine and the measured GPU."""
    import psutil

    return Node(
        hostname=platform.node(),
        os=platform.platform(),
        cpu=cpu_name(),
        num_cores=num_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=_gpu(device),
    )


def software() -> Software:
    """Versions and variables of this process."""
    import torch

    has_cuda = torch.version.cuda is not None
    return Software(
        python=platform.python_version(),
        packages=_packages(),
        cuda=torch.version.cuda,
        cudnn=_dotted(torch.backends.cudnn.version()) if has_cuda else None,
        nccl=_nccl() if has_cuda else None,
        container=_container(),
        lock=_lock(),
        env={name: os.environ[name] for name in ENV if name in os.environ},
    )


def slurm_job() -> str | None:
    """Slurm's number of the job that this process belongs to; None without Slurm."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _container() -> str | None:
    """The digest of the image that this process is in: what the workflow says, or the stamp of an image that
    was entered by hand."""
    entered = next((os.environ[name] for name in ENTERED if os.environ.get(name)), None)
    if os.environ.get(CONTAINER) or entered is None:
        return os.environ.get(CONTAINER)
    stamp = IMAGES / f"{Path(entered).name}.sha256"
    return (
        f"sha256:{stamp.read_text(encoding='utf-8')[:64]}"
        if stamp.is_file()
        else f"not obtained by longca: {entered}"
    )


def _lock() -> str | None:
    return os.environ.get(LOCK) or _written(LOCK_FILE)


def _written(name: str) -> str | None:
    """A fact that tools/setup.py has written down in this virtual environment; None where it has not."""
    file = Path(sys.prefix) / name
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


class NoDevice(Exception):
    """The requested device does not exist on this machine."""


def choose_device(device: str, local_rank: int) -> torch.device:
    """The device of a rank.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        local_rank: number of the rank on its machine.

    Raises:
        NoDevice: there is no GPU for this rank.
    """
    import torch

    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not num_devices):
        return torch.device("cpu")
    if num_devices == 1:
        # each task of a job may see its own GPU only; the runner checks that no two ranks share one
        local_rank = 0
    if local_rank >= num_devices:
        raise NoDevice(f"torch {torch.__version__} sees {num_devices} GPUs")
    return torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    """The model of the GPU or CPU, as method versions contain it."""
    if device.type != "cuda":
        return cpu_name()
    import torch

    return torch.cuda.get_device_name(device)


def device_uuid(device: torch.device) -> str:
    """The UUID of a GPU; empty for a CPU."""
    if device.type != "cuda":
        return ""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


@functools.cache
def cpu_name() -> str:
    """The model of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@functools.cache
def _packages() -> dict[str, str]:
    wheel = _written(TORCH_FILE)
    return {name: version for name in PACKAGES if (version := _version(name)) is not None} | (
        {TORCH_WHEEL: wheel} if wheel else {}
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    import torch

    properties = torch.cuda.get_device_properties(device)
    facts = {
        "name": properties.name,
        "uuid": str(properties.uuid),
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "num_sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
    with open_gpu(device) as gpu:
        return facts if gpu is None else facts | _managed(gpu)


def gpu_system(device: torch.device) -> tuple[str | None, dict[str, str]]:
    """(version of the driver, versions of the GPU's firmware by name), as far as NVML tells; (None, {})
    without a GPU."""
    with open_gpu(device) as gpu:
        if gpu is None:
            return None, {}
        queries = {"vbios": "VbiosVersion", "gsp": "GspFirmwareVersion", "inforom": "InforomImageVersion"}
        versions = {name: gpu.read(query) for name, query in queries.items()}
        return gpu.nvml.nvmlSystemGetDriverVersion(), {
            name: str(version) for name, version in versions.items() if version
        }


def _managed(gpu: Gpu) -> dict[str, Any]:
    """Facts that only NVML knows; those that it refuses are left out."""
    nvml = gpu.nvml
    power_limit_mw = gpu.read("EnforcedPowerLimit")
    ecc = gpu.read("EccMode")
    mig = gpu.read("MigMode")
    facts = {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "power_limit_w": None if power_limit_mw is None else power_limit_mw / 1000,
        "max_sm_clock_mhz": gpu.read("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": gpu.read("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        "memory_clock_mhz": gpu.read("ClockInfo", nvml.NVML_CLOCK_MEM),
        "persistence": _on(gpu.read("PersistenceMode")),
        "ecc": None if ecc is None else _on(ecc[0]),
        "mig": None if mig is None else _on(mig[0]),
    }
    return {name: value for name, value in facts.items() if value is not None}


def num_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _nccl() -> str | None:
    from torch.cuda import nccl

    try:
        return ".".join(map(str, nccl.version()))
    except (AttributeError, RuntimeError):  # built without NCCL
        return None


def _dotted(cudnn: int | None) -> str | None:
    """91900 → "9.19.0"."""
    return None if cudnn is None else f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
