"""Peak rates of GPUs and the speed of messages between them, from config/hardware.yaml."""

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from longca.core.errors import UserError, unknown
from longca.core.reading import in_project, origin
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
    also_called: tuple[str, ...] = ()
    """shorter names that mean this model, although others begin so, too: "H100" """
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
    between_nodes: bool = True
    """False if it describes messages within one node, as by copy engines into symmetric memory: for more GPUs
    another profile is taken, where there is one"""
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
        """The GPU of a user's name: a name of the file or the driver, or a part of one that no other GPU has.
        Case, spaces and hyphens do not count.

        Raises:
            UserError: no GPU matches, or several do.
        """
        by_name = {gpu.name: gpu for gpu in self.gpus}
        alike = matches(name, {gpu.name: (gpu.name, *gpu.also_called, *gpu.gpu_names) for gpu in self.gpus})
        if len(alike) > 1:
            raise UserError(
                f"GPU '{name}' may be {' or '.join(map(repr, alike))}", todo="Give one of these names"
            )
        if not alike:
            # all are named: the nearest in letters is another model, as B200 to "H300"
            known = ", ".join(gpu.name for gpu in self.gpus) or "none"
            raise UserError(
                f"Unknown GPU '{name}'",
                why=f"known are {known}",
                todo="config/hardware.yaml has them: give one of these, or add yours with a source",
            )
        return by_name[alike[0]]

    def network(self, name: str) -> Network:
        """A profile by its name, or the first of a file that `longca probe` has written.

        Raises:
            UserError: there is none.
        """
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            network = next((each for each in self.networks if each.name == name), None)
            if network is None:
                raise unknown(
                    "profile of messages",
                    name,
                    [each.name for each in self.networks],
                    todo="They stand in config/hardware.yaml",
                )
            return network
        if not path.is_file():
            raise UserError(f"There is no file '{name}'", todo="`longca probe` writes one")
        networks = load_hardware(path).networks
        if not networks:
            raise UserError(f"'{name}' holds no profile of messages", todo="`longca probe` writes one")
        return networks[0]

    def peak_tflops(self, gpu_name: str, dtype: str) -> float | None:
        """The peak rate for that GPU and dtype; None without a source."""
        gpu = self.find(gpu_name) if dtype in ("bf16", "fp16") else None
        return gpu.peak_tflops.value if gpu else None

    def bandwidth_gb_s(self, gpu_name: str) -> float | None:
        """The memory bandwidth of that GPU; None without a source."""
        gpu = self.find(gpu_name)
        return gpu.bandwidth_gb_s.value if gpu else None


def matches(name: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    """The keys that a user's name means: those with exactly this name, else those with a name that begins so,
    else those with one that has it somewhere. Only whole words count: "H20" is no part of "H200".

    Args:
        names: key → its names.
    """
    wanted = "".join(_words(name))
    if not wanted:
        return []
    parts = {key: [_words(name) for name in of_key] for key, of_key in names.items()}
    whole = [key for key, of_key in parts.items() if any("".join(words) == wanted for words in of_key)]
    begin = [key for key, of_key in parts.items() if any(wanted in _runs(words, {0}) for words in of_key)]
    return (
        whole
        or begin
        or [
            key
            for key, of_key in parts.items()
            if any(wanted in _runs(words, set(range(len(words)))) for words in of_key)
        ]
    )


def _words(name: str) -> list[str]:
    """The words of a GPU's name in small letters, without that of its maker."""
    return [word for word in re.findall(r"[a-z0-9]+", name.casefold()) if word != "nvidia"]


def _runs(words: Sequence[str], starts: Collection[int]) -> set[str]:
    """All runs of words that begin at these places, written as one word each."""
    return {"".join(words[start:end]) for start in starts for end in range(start + 1, len(words) + 1)}


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
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        changed_ns = 0  # reading it says why
    return _read(path, changed_ns)


@functools.cache  # a page asks a dozen times, and the file takes a tenth of a second
def _read(path: Path, _changed_ns: int) -> Hardware:
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
