"""The question that advice answers: a call, the GPUs that it runs on, and the profile of their messages."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core.errors import UserError, check_name, unknown, whole_number
from longca.core.plugin import Registry
from longca.cp.forecast import PROFILES
from longca.lab.store.hardware import load_hardware
from longca.lab.studies.cell import DTYPE_BYTES, CallSpec, Direction
from longca.masks.mask import Mask
from longca.predict.fitted import FittedKernels, fitted_on, load_fitted

if TYPE_CHECKING:
    from longca.lab.store.hardware import GpuModel, Hardware, Network
    from longca.predict.call import CallModel

USUAL_NETWORK = PROFILES["symmetric"]
DIRECTIONS: dict[str, tuple[Direction, ...]] = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd")}
BY_PEAK = "share of peak"  # the source of a model that is of another GPU
OTHER_GPU_WIDER = 2.0  # times as wide is the interval of a GPU without records


@dataclass(frozen=True)
class AdviceQuestion:
    """One attention call on some GPUs. Everything is checked."""

    mask: Mask
    gpus: int
    call: CallSpec
    """its direction is `bwd` where the call must allow a backward: the engine then plans for both"""
    directions: tuple[Direction, ...]
    """that are timed"""
    gpu: GpuModel
    network: Network
    memory_bytes: float | None
    """of a GPU, that may be used"""
    kernels: tuple[str, ...]
    strategies: tuple[str, ...]
    fitted: FittedKernels
    """of this GPU, where there are such"""
    reference: FittedKernels
    """for the kernels that `fitted` does not know"""

    @property
    def is_fitted_gpu(self) -> bool:
        return self.fitted.device in self.gpu.gpu_names

    def flops(self, direction: Direction) -> int:
        """Floating-point operations of all GPUs together."""
        return replace(self.call, direction=direction).flops(self.mask.area, self.mask.num_groups)

    def model(self, kernel: str, direction: str) -> CallModel | None:
        """The fitted kernel for this mask; without records on this GPU scaled by the peaks of both GPUs, and
        marked so."""
        for models in (self.fitted, self.reference):
            found = models.find(
                kernel, direction, self.mask.traits, self.call.num_q_heads // self.call.num_kv_heads
            )
            if found is not None:
                break
        else:
            return None
        probed = self.network.kernel_ratio.get(f"{kernel} {direction}")
        if probed is not None:
            return found.scaled(probed, "probe", self.network.wider)
        if models.device in self.gpu.gpu_names:
            return found
        known = load_hardware().find(models.device)
        if known is None:
            raise UserError(
                f"Records of '{models.device}' say nothing about {self.gpu.name}",
                why="config/hardware.yaml does not have the peak of both",
                todo="Add that GPU there, or give other records",
            )
        ratio = known.peak_tflops.value / self.gpu.peak_tflops.value
        return found.scaled(ratio, BY_PEAK, OTHER_GPU_WIDER)

    @property
    def is_probed(self) -> bool:
        """Kernels were timed on this GPU by `longca probe`."""
        return bool(self.network.kernel_ratio)


def question_of(
    mask: Mask,
    *,
    gpus: int = 1,
    num_q_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int = 128,
    dtype: str = "bf16",
    direction: str = "both",
    profile: str | None = None,
    gpu: str | None = None,
    memory_bytes: float | None = None,
    ranks_per_node: int | None = None,
    kernels: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    fitted: FittedKernels | None = None,
) -> AdviceQuestion:
    """Checks a question. Arguments are those of `longca.lab.advice.ranking.advise`.

    Raises:
        UserError: an argument cannot be used.
    """
    _check_mask(mask)
    gpus, head_dim = whole_number("The number of GPUs", gpus), whole_number("The head dim", head_dim)
    num_q_heads = whole_number("The number of query heads", num_q_heads)
    num_kv_heads = (
        num_q_heads if num_kv_heads is None else whole_number("The number of KV heads", num_kv_heads)
    )
    if num_q_heads % num_kv_heads:
        raise UserError(
            f"{num_q_heads} query heads cannot be shared evenly among {num_kv_heads} KV heads of size "
            f"{head_dim}"
        )
    if gpus > 1 and mask.seqlen_q != mask.seqlen_k:
        raise UserError(
            f"A mask of {mask.seqlen_q} queries and {mask.seqlen_k} keys cannot be divided among {gpus} GPUs",
            why="tokens are divided, and each is a query and a key",
            todo="Give a square mask, or gpus=1",
        )
    check_name("direction", direction, DIRECTIONS)
    check_name("dtype", dtype, DTYPE_BYTES)
    for name, given in (("profile", profile), ("gpu", gpu)):
        if given is not None and not isinstance(given, (str, Path)):
            raise UserError(f"Argument '{name}' is {given!r}", todo="Give a name in config/hardware.yaml")
    for name, names in (("kernels", kernels), ("strategies", strategies)):
        if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
            raise UserError(f"Argument '{name}' is {names!r}", todo="Give a list of names")
    if memory_bytes is not None and not (
        isinstance(memory_bytes, (int, float)) and 0 < memory_bytes < math.inf
    ):
        raise UserError(
            f"Argument 'memory_bytes' is {memory_bytes!r}", todo="Give a number of bytes, such as 60e9"
        )
    if fitted is not None and not isinstance(fitted, FittedKernels):
        raise UserError(
            f"Argument 'fitted' is of type {type(fitted).__name__}",
            todo="Leave it out, or fit records with fit_records",
        )
    hardware = load_hardware()
    network = _network(profile or USUAL_NETWORK, hardware)
    if ranks_per_node is not None:
        network = network.model_copy(
            update={"ranks_per_node": whole_number("The number of GPUs of a node", ranks_per_node)}
        )
    model = hardware.named(str(gpu or network.gpu))
    if memory_bytes is None and model.memory_gb is not None:
        memory_bytes = model.memory_gb.value * 1e9
    reference = load_fitted() if fitted is None else fitted
    own = (
        None if fitted is not None or network.kernel_ratio else fitted_on(model.gpu_names)
    )  # a probe's ratios are to the reference
    models = own or reference
    known = sorted({*models.kernels, *reference.kernels})
    for name in kernels or ():
        if name not in known:
            raise UserError(
                f"Nothing is known of the time of kernel '{name}'",
                why=f"records of {reference.device} have {', '.join(known)}",
                todo="Take one of these, or give records of yours",
            )
    every = tuple(
        name for name in Registry("strategy").names() if not Registry("strategy").load(name).baseline
    )
    for name in strategies or ():
        check_name("strategy", name, Registry("strategy").names())
    call = CallSpec(num_q_heads, num_kv_heads, head_dim, dtype, "fwd" if direction == "fwd" else "bwd")  # type: ignore[arg-type]
    return AdviceQuestion(
        mask,
        gpus,
        call,
        DIRECTIONS[direction],
        model,
        network,
        memory_bytes,
        tuple(kernels or (known if gpus == 1 else _for_parts(known))),
        tuple(strategies or every),
        models,
        reference,
    )


def _check_mask(mask: object) -> None:
    """Raise UserError for what is no mask."""
    if not isinstance(mask, Mask):
        example = (
            f'longca.build_mask({mask!r}, seqlen="128K")'
            if isinstance(mask, str)
            else "longca.build_mask or longca.Mask.from_…"
        )
        raise UserError(
            f"The mask must be a longca.Mask, and it is {type(mask).__name__}",
            todo=f"Make one with {example}",
        )


def _for_parts(known: Collection[str]) -> list[str]:
    """Kernels that can attend to some keys now and to others later, one of each family; `band` first."""
    return [name for name in ("band", "fa3", "fa4") if name in known]


def _network(name: str, hardware: Hardware) -> Network:
    """A profile by its name, or the first of a file that `longca probe` has written."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        found = next((one for one in hardware.networks if one.name == name), None)
        if found is None:
            raise unknown(
                "profile of messages",
                name,
                [one.name for one in hardware.networks],
                todo="They stand in config/hardware.yaml",
            )
        return found
    if not path.is_file():
        raise UserError(f"There is no file '{name}'", todo="`longca probe` writes one")
    networks = load_hardware(path).networks
    if not networks:
        raise UserError(f"'{name}' holds no profile of messages", todo="`longca probe` writes one")
    return networks[0]
