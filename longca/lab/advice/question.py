"""The question that advice answers: a call, the GPUs that it runs on, and the profile of their messages.

The limit on masks of blocks: plans of them are made block by block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import (
    DTYPE_BYTES,
    CallSpec,
    Direction,
    Registry,
    Scalar,
    UserError,
    check_name,
    format_length,
    load_hardware,
    unknown,
    whole_number,
)
from longca.cp.forecast import PROFILES
from longca.lab.store.text import plural
from longca.lab.studies import DRAWS, check_new_tokens
from longca.masks import Mask, draw_again
from longca.predict.fitted import FOLDER, FittedKernels, fitted_on, load_fitted

if TYPE_CHECKING:
    from longca.core import GpuModel, Hardware, Network
    from longca.masks import Mask
    from longca.predict.fitted import CallModel

MOST_BLOCKS = 40_000_000  # of all head groups, on several GPUs: 128K tokens in blocks of 64, for 8 KV heads
MOST_BLOCKS_ALONE = 150_000_000  # on one GPU, where nothing is planned: 256K tokens of the same
ALIKE_BLOCKS = 100_000  # from which on the draws of a random block mask are alike


def check_blocks(name: str, params: Mapping[str, Any], seqlen: int, num_kv_heads: int, gpus: int) -> None:
    """Refuses a mask of too many blocks before it is built.

    Args:
        params: of the pattern; those with blocks have `block` or `mean_block`.

    Raises:
        UserError: it would have more than can be counted in a minute or so.
    """
    block = params.get("block", params.get("mean_block"))
    if isinstance(block, int) and block > 0:
        _check(name, (-(-seqlen // block)) ** 2 * num_kv_heads, seqlen, gpus)


def check_grid(mask: Mask, gpus: int) -> None:
    """The same for a mask that is built already."""
    if mask.grid is not None:
        _check(mask.name or "of blocks", mask.grid.visible.size, mask.seqlen_q, gpus)


def draws_alike(mask: Mask) -> bool:
    """True for random blocks of such a number that other draws have the same time."""
    return mask.grid is not None and mask.grid.visible.size >= ALIKE_BLOCKS


def _check(name: str, num_blocks: int, seqlen: int, gpus: int) -> None:
    most = MOST_BLOCKS if gpus > 1 else MOST_BLOCKS_ALONE
    if num_blocks > most:
        raise UserError(
            f"Mask '{name}' of {format_length(seqlen)} tokens has {num_blocks:,} blocks, too many to predict",
            why=(
                f"{'plans on several GPUs are' if gpus > 1 else 'tiles are'} counted block by block, at most "
                f"{most:,}"
            ),
            todo="Take fewer tokens, or larger blocks such as block=1024",
        )


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
    seeds: tuple[int, ...] = ()
    """of the draws that time is predicted over, first that of `mask`; () for a mask that is not drawn"""
    parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """by kernel, the kinds of masks (`longca.predict.fitted.part_kind`) in whose parts records have it, on
    any GPU"""

    def __repr__(self) -> str:
        return f"<AdviceQuestion {self.setting}>"

    @property
    def num_draws(self) -> int:
        return max(len(self.seeds), 1)

    def drawn(self, number: int) -> AdviceQuestion:
        """The same question about one draw, by its place in `seeds`."""
        if number == 0 or self.mask.origin is None:
            return self
        return replace(self, mask=draw_again(self.mask.origin, self.seeds[number]))

    @property
    def corpus(self) -> str | None:
        """The source of document lengths; None where there are none, or where they were given."""
        return self.mask.origin.corpus if self.mask.origin else None

    @property
    def mask_params(self) -> dict[str, Scalar]:
        """The parameters of the mask's pattern; {} for a mask of no pattern."""
        if self.mask.name not in Registry("mask").names():
            return {}
        known = Registry("mask").load(self.mask.name).Params.model_fields
        return {
            key: value
            for key, value in self.mask.params.items()
            if key in known and isinstance(value, (bool, int, float, str))
        }

    @property
    def setting(self) -> str:
        """All that was asked, in words."""
        call = self.call
        name = self.mask.name or "a mask of bands"
        params = ", ".join(f"{key}={value}" for key, value in self.mask_params.items() if value is not False)
        documents = f"documents of {self.corpus}" if self.corpus else ""
        if not documents and self.mask.documents is not None:
            documents = f"{plural(len(self.mask.documents), 'document')} as given"
        ways = " and ".join({"fwd": "forward", "bwd": "backward"}[way] for way in self.directions)
        gpus = f"{self.gpus} × {self.gpu.name}" if self.gpus > 1 else f"one {self.gpu.name}"
        facts = [
            f"{name} ({params})" if params else name,
            documents,
            f"{format_length(self.mask.seqlen_k)} tokens",
            f"{format_length(self.mask.seqlen_q)} of them new" if self.has_context else "",
            gpus,
            ways,
            f"{call.num_q_heads}:{call.num_kv_heads} heads",
            f"head dim {call.head_dim}",
            call.dtype,
            seeds_text(self.seeds),
        ]
        return ", ".join(filter(None, facts))

    @property
    def has_context(self) -> bool:
        """True if the queries are fewer than the keys."""
        return self.mask.seqlen_q < self.mask.seqlen_k

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


def seeds_text(seeds: Sequence[int]) -> str:
    """ "seeds 0 to 7", "seed 3"; "" for none."""
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else ""
    return f"seeds {seeds[0]} to {seeds[-1]}"


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
    draws: int = DRAWS,
) -> AdviceQuestion:
    """Checks a question. Arguments are those of `longca.lab.advice.ranking.advise`.

    Raises:
        UserError: an argument cannot be used.
    """
    _check_mask(mask)
    gpus = whole_number("The number of GPUs", gpus)
    head_dim = whole_number("The head dim", head_dim)
    draws = whole_number("The number of draws", draws)
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
    if mask.seqlen_q < mask.seqlen_k:
        try:
            check_new_tokens(mask.seqlen_q, mask.seqlen_k)
        except ValueError as error:
            raise UserError(str(error)) from None
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
    model = _gpu(str(gpu or network.gpu), hardware)
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
    check_grid(mask, gpus)
    draws = 1 if draws_alike(mask) else draws
    seeds = tuple(range(mask.origin.seed, mask.origin.seed + draws)) if mask.origin is not None else ()
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
        seeds,
        _measured_parts(models, reference),
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


def _measured_parts(*models: FittedKernels) -> dict[str, frozenset[str]]:
    """`AdviceQuestion.parts` of these models and of all committed ones."""
    parts: dict[str, frozenset[str]] = {}
    for fitted in (*models, *map(load_fitted, sorted(FOLDER.glob("*.json")))):
        for kernel, kinds in fitted.parts.items():
            parts[kernel] = parts.get(kernel, frozenset()) | frozenset(kinds)
    return parts


def _gpu(name: str, hardware: Hardware) -> GpuModel:
    """The GPU of a user's name. Raises UserError, which says so if there are records of it all the same."""
    try:
        return hardware.named(name)
    except UserError:
        from longca.lab.store.load import committed_like

        files = committed_like(name)
        if not files:
            raise
        raise UserError(
            f"Nothing can be predicted for GPU '{name}'",
            why=f"it has records in reports/{files[0].parent.name}, but no peaks in config/hardware.yaml",
            todo=f"Add them there with a source, or rank its records with `longca choose MASK --gpu {name}`",
        ) from None


def _network(name: str, hardware: Hardware) -> Network:
    """A profile by its name, or the first of a file that `longca probe` has written."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        network = next((each for each in hardware.networks if each.name == name), None)
        if network is None:
            raise unknown(
                "profile of messages",
                name,
                [each.name for each in hardware.networks],
                todo="They stand in config/hardware.yaml",
            )
        return network
    if not path.is_file():
        raise UserError(f"There is no file '{name}'", todo="`longca probe` writes one")
    networks = load_hardware(path).networks
    if not networks:
        raise UserError(f"'{name}' holds no profile of messages", todo="`longca probe` writes one")
    return networks[0]
