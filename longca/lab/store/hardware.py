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
    """A number with its source: a URL, records of this project, or a declared assumption."""

    value: float = Field(gt=0)
    source: str = Field(min_length=8)


class Network(Frozen):
    """A profile of messages between GPUs, within a node and between nodes."""

    name: str
    summary: str
    gpu: str
    """the GPU model of such machines"""
    ranks_per_node: int = Field(ge=1)
    intra_gb_s: Stated
    """10^9 bytes per second that a GPU sends within its node while it receives as much"""
    inter_gb_s: Stated
    """the same between nodes, for each GPU while all GPUs of its node send"""
    intra_us: Stated
    """latency of a batch of messages, in microseconds"""
    inter_us: Stated
    overlap: Stated
    """slowdown of kernels by overlapped messages, as a share of the messages' time"""
    measured: bool = False
    """True if the numbers within a node are fitted on records; otherwise this project measured none of
    them"""
    kernel_ratio: dict[str, Annotated[float, Field(gt=0)]] = {}
    """by "kernel direction", time on this machine's GPU over that of the committed records, measured by
    `longca probe`"""
    wider: float = Field(default=1.0, ge=1)
    """factor on the width of intervals, since the machine was busy during the probe"""


class Hardware(Frozen):
    """All known GPUs and networks."""

    gpus: tuple[GpuModel, ...] = ()
    networks: tuple[Network, ...] = ()

    def find(self, gpu_name: str) -> GpuModel | None:
        """The GPU with exactly this name: "NVIDIA H20" is not "NVIDIA H200"."""
        return next((gpu for gpu in self.gpus if gpu_name in gpu.gpu_names), None)

    def named(self, name: str) -> GpuModel:
        """The GPU of a user's name: a name of the file or the driver, case-insensitive, or a unique prefix of
        words.

        Raises:
            UserError: no GPU matches, or several do.
        """
        wanted = name.casefold().split()
        names = {
            gpu.name: [gpu.name, *gpu.gpu_names, *(one.removeprefix("NVIDIA ") for one in gpu.gpu_names)]
            for gpu in self.gpus
        }
        same = [gpu for gpu in self.gpus if wanted in [one.casefold().split() for one in names[gpu.name]]]
        alike = same or [
            gpu for gpu in self.gpus if wanted and gpu.name.casefold().split()[: len(wanted)] == wanted
        ]
        if len(alike) > 1:
            raise UserError(
                f"GPU '{name}' may be {' or '.join(repr(gpu.name) for gpu in alike)}",
                todo="Give one of these names",
            )
        if not alike:
            raise unknown(
                "GPU", name, [gpu.name for gpu in self.gpus], todo="GPUs are listed in config/hardware.yaml"
            )
        return alike[0]

    def peak_tflops(self, gpu_name: str, dtype: str) -> float | None:
        """The peak rate for that GPU and dtype; None without a source."""
        gpu = self.find(gpu_name) if dtype in ("bf16", "fp16") else None
        return gpu.peak_tflops.value if gpu else None

    def bandwidth_gb_s(self, gpu_name: str) -> float | None:
        """The memory bandwidth of that GPU; None without a source."""
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
        UserError: the file is invalid, or lists a name twice.
    """
    if path is None:
        path = next(iter(hardware_files()), None)
        if path is None:
            return Hardware()
    content = read_yaml(path) or []
    # once it was a list of GPUs
    hardware = parse(Hardware, content if isinstance(content, dict) else {"gpus": content}, str(path))
    names = [
        *(name for gpu in hardware.gpus for name in gpu.gpu_names),
        *(network.name for network in hardware.networks),
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{path}: '{twice[0]}' is repeated", todo="Each name belongs to one GPU or network")
    return hardware
