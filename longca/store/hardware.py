"""Peak rates of GPUs and the speed of messages between them, from config/hardware.yaml."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from longca.core.checkout import in_project, origin
from longca.core.errors import UserError, unknown
from longca.core.schema import Frozen, parse, read_yaml

HARDWARE = Path("config/hardware.yaml")


class Sourced(Frozen):
    """A number and the URL of its source."""

    value: float = Field(gt=0)
    source: str = Field(pattern=r"^https?://")


class GpuModel(Frozen):
    """One model of GPU."""

    name: str
    gpu_names: tuple[str, ...]
    """as the driver reports them"""
    peak_tflops: Sourced
    """dense bf16 and fp16, fp32 accumulation"""
    bandwidth_gb_s: Sourced
    memory_gb: Sourced | None = None
    """10^9 bytes of memory"""


class Stated(Frozen):
    """A number, and where it is from: a URL, records of this project, or an assumption that says so."""

    value: float = Field(gt=0)
    source: str = Field(min_length=8)


class Network(Frozen):
    """A profile of messages between GPUs: those of one node, and those of different ones."""

    name: str
    summary: str
    gpu: str
    """the model of GPU that such machines have"""
    ranks_per_node: int = Field(ge=1)
    intra_gb_s: Stated
    """10^9 bytes a second that a GPU sends to others of its node, and as much that it receives"""
    inter_gb_s: Stated
    """the same to other nodes: of one GPU, while all GPUs of its node send"""
    intra_us: Stated
    """microseconds of a batch of messages in addition to its bytes"""
    inter_us: Stated
    overlap: Stated
    """time that kernels lose to overlapped messages, as a share of these"""
    measured: bool = False
    """its numbers within a node are fitted on records; else nothing of it was measured by this project"""
    kernel_ratio: dict[str, Annotated[float, Field(gt=0)]] = {}
    """by "kernel direction", time on this machine's GPU over that of the project's records, as `longca probe` measured it"""
    wider: float = Field(1.0, ge=1)
    """the factor by which intervals are wider than those of records: the machine was busy while it was probed"""


class Hardware(Frozen):
    """All GPUs and networks that are known."""

    gpus: tuple[GpuModel, ...] = ()
    networks: tuple[Network, ...] = ()

    def find(self, gpu_name: str) -> GpuModel | None:
        """The GPU that reports this very name: "NVIDIA H20" is no "NVIDIA H200"."""
        return next((gpu for gpu in self.gpus if gpu_name in gpu.gpu_names), None)

    def named(self, name: str) -> GpuModel:
        """The GPU that somebody names: as the file or the driver names it, in any case; or by its first words, where one GPU has them.

        Raises:
            UserError: there is none, or several begin so.
        """
        wanted = name.casefold().split()
        names = {gpu.name: [gpu.name, *gpu.gpu_names, *(one.removeprefix("NVIDIA ") for one in gpu.gpu_names)] for gpu in self.gpus}
        same = [gpu for gpu in self.gpus if wanted in [one.casefold().split() for one in names[gpu.name]]]
        alike = same or [gpu for gpu in self.gpus if wanted and gpu.name.casefold().split()[:len(wanted)] == wanted]
        if len(alike) > 1:
            raise UserError(f"GPU '{name}' may be {' or '.join(repr(gpu.name) for gpu in alike)}", todo="Give one of these names")
        if not alike:
            raise unknown("GPU", name, [gpu.name for gpu in self.gpus], todo="GPUs are listed in config/hardware.yaml")
        return alike[0]

    def peak_tflops(self, gpu_name: str, dtype: str) -> float | None:
        """The ceiling for that GPU and dtype; None where no source gives one."""
        gpu = self.find(gpu_name) if dtype in ("bf16", "fp16") else None
        return gpu.peak_tflops.value if gpu else None

    def bandwidth_gb_s(self, gpu_name: str) -> float | None:
        """The bandwidth of that GPU's memory; None where no source gives it."""
        gpu = self.find(gpu_name)
        return gpu.bandwidth_gb_s.value if gpu else None


def hardware_files() -> list[Path]:
    """The file that `load_hardware` reads by itself: that of the project, else that of `origin`; or none."""
    root = origin()
    places = (in_project(HARDWARE), root / HARDWARE) if root else (in_project(HARDWARE),)
    return [path for path in places if path.exists()][:1]


def load_hardware(path: Path | None = None) -> Hardware:
    """The file in the project's `config`, or else that of `origin`. Without both, no GPU is known.

    Raises:
        UserError: the file is not valid, or lists a name twice.
    """
    if path is None:
        path = next(iter(hardware_files()), None)
        if path is None:
            return Hardware()
    content = read_yaml(path) or []
    hardware = parse(Hardware, content if isinstance(content, dict) else {"gpus": content}, str(path))  # once it was a list of GPUs
    names = [*(name for gpu in hardware.gpus for name in gpu.gpu_names), *(network.name for network in hardware.networks)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: '{twice[0]}' stands twice", todo="Each name belongs to one GPU or network")
    return hardware
