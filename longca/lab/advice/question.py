"""The question that advice answers: a call, the GPUs that it runs on, and the profile of their messages. What
it leaves out has the value of most records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    given_heads,
    load_hardware,
    parse_length,
    whole_number,
)
from longca.cp.partition import check_blocks, check_grid, draws_alike
from longca.lab.advice.machine import machine_of
from longca.lab.advice.ways import asked_ways
from longca.lab.store.text import plural
from longca.lab.studies import (
    DRAWS,
    USUAL_DTYPE,
    USUAL_HEAD_DIM,
    USUAL_HEADS,
    USUAL_SEQLEN,
    check_new_tokens,
    check_ranks,
    usual_corpus,
)
from longca.masks import Mask, build_mask, draw_again
from longca.predict.fitted import BY_PEAK, FOLDER, FittedKernels, fitted_on, load_fitted

if TYPE_CHECKING:
    from longca.core import GpuModel, Network
    from longca.lab.advice.ways import AskedWays
    from longca.predict.fitted import CallModel

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "fwd": ("fwd",),
    "bwd": ("bwd",),
    "both": ("fwd", "bwd"),
    "fwd+bwd": ("fwd", "bwd"),  # as `longca.choose` calls the sum
}
MOST_GPUS = 4096  # plans have tables of all pairs of ranks
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
    asked: AskedWays
    fitted: FittedKernels
    """of this GPU, where there are such"""
    reference: FittedKernels
    """for the kernels that `fitted` does not know"""
    seeds: tuple[int, ...] = ()
    """of the draws that time is predicted over, first that of `mask`; () for a mask that is not drawn"""
    parts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """by kernel, the kinds of masks (`longca.predict.fitted.part_kind`) in whose parts records have it, on
    any GPU"""
    assumed_profile: str = ""
    """in words, why the profile is this one, where it was not given; "" on one GPU"""

    def __repr__(self) -> str:
        return f"<AdviceQuestion {self.setting}>"

    @property
    def kernels(self) -> tuple[str, ...]:
        return self.asked.kernels

    @property
    def strategies(self) -> tuple[str, ...]:
        return self.asked.strategies

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
    mask: Mask | str,
    *,
    gpus: int | None = None,
    seqlen: int | str | None = None,
    new_tokens: int | str | None = None,
    corpus: str | None = None,
    seed: int | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    direction: str | None = None,
    profile: str | None = None,
    gpu: str | None = None,
    memory_bytes: float | None = None,
    ranks_per_node: int | None = None,
    kernels: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    fitted: FittedKernels | None = None,
    draws: int | None = None,
    params: Mapping[str, Scalar] | None = None,
) -> AdviceQuestion:
    """Checks a question. Arguments are those of `longca.lab.advice.ranking.advise`.

    Raises:
        UserError: an argument cannot be used.
    """
    gpus = 1 if gpus is None else gpus
    head_dim = USUAL_HEAD_DIM if head_dim is None else head_dim
    dtype = USUAL_DTYPE if dtype is None else dtype
    direction = "both" if direction is None else direction
    by_name = isinstance(mask, str)
    mask, num_q_heads, num_kv_heads = _mask_and_heads(
        mask, gpus, seqlen, new_tokens, corpus, seed, num_q_heads, num_kv_heads, params or {}
    )
    gpus = whole_number("The number of GPUs", gpus)
    head_dim = whole_number("The head dim", head_dim)
    check_ranks(gpus, mask.seqlen_k)
    if gpus > MOST_GPUS:
        raise UserError(
            f"{gpus:,} GPUs are too many to predict",
            why="what each sends to each of the others is counted",
            todo=f"Give at most {MOST_GPUS:,}",
        )
    if by_name:
        _refuse_draws(mask, seed, draws)
    draws = whole_number("The number of draws", DRAWS if draws is None else draws)
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
    if fitted is not None and not isinstance(fitted, FittedKernels):
        raise UserError(
            f"Argument 'fitted' is of type {type(fitted).__name__}",
            todo="Leave it out, or fit records with fit_records",
        )
    machine = machine_of(profile, gpu, ranks_per_node, memory_bytes, gpus)
    model, network = machine.gpu, machine.network
    reference = load_fitted() if fitted is None else fitted
    own = (
        None if fitted is not None or network.kernel_ratio else fitted_on(model.gpu_names)
    )  # a probe's ratios are to the reference
    models = own or reference
    known = sorted({*models.kernels, *reference.kernels})
    asked = asked_ways(strategies, kernels, known if gpus == 1 else _for_parts(known))
    if strategies and gpus == 1:
        raise UserError(
            f"Strategy '{asked.strategies[0]}' is given for one GPU",
            why="strategies divide a call among several",
            todo="Give more GPUs, or leave it out",
        )
    for name in asked.kernels:
        if name not in known:
            raise UserError(
                f"Nothing is known of the time of kernel '{name}'",
                why=f"records of {reference.device} have {', '.join(known)}",
                todo="Take one of these, or give records of yours",
            )
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
        machine.memory_bytes,
        asked,
        models,
        reference,
        seeds,
        _measured_parts(models, reference),
        machine.assumed_profile if gpus > 1 else "",
    )


def _mask_and_heads(
    mask: Mask | str,
    gpus: int,
    seqlen: int | str | None,
    new_tokens: int | str | None,
    corpus: str | None,
    seed: int | None,
    num_q_heads: int | None,
    num_kv_heads: int | None,
    params: Mapping[str, Scalar],
) -> tuple[Mask, int, int]:
    """The mask, which is built already or a pattern's name, and the numbers of query and KV heads. Arguments
    that build a mask go with a name alone."""
    if isinstance(mask, str):
        num_q_heads, num_kv_heads = given_heads(num_q_heads, num_kv_heads, USUAL_HEADS)
        built = _built(mask, gpus, seqlen, new_tokens, corpus, seed, num_kv_heads, params)
        return built, num_q_heads, num_kv_heads
    given = {"seqlen": seqlen, "new_tokens": new_tokens, "corpus": corpus, "seed": seed, **params}
    extra = [name for name, value in given.items() if value is not None]
    if not isinstance(mask, Mask):
        raise UserError(
            f"The mask must be a longca.Mask, and it is {type(mask).__name__}",
            todo="Make one with longca.build_mask or longca.Mask.from_…",
        )
    if extra:
        raise UserError(
            f"Argument '{extra[0]}' is for a pattern's name, and this mask is built already",
            todo=f"Give it to longca.build_mask, or longca.advise({mask.name or 'causal'!r}, {extra[0]}=…)",
        )
    if num_q_heads is None and num_kv_heads is None and mask.num_groups > 1:
        num_kv_heads = mask.num_groups  # a mask with head groups says how many KV heads it is for
    return mask, *given_heads(num_q_heads, num_kv_heads, USUAL_HEADS)


def _built(
    name: str,
    gpus: int,
    seqlen: int | str | None,
    new_tokens: int | str | None,
    corpus: str | None,
    seed: int | None,
    num_kv_heads: int,
    params: Mapping[str, Scalar],
) -> Mask:
    pattern = Registry("mask").load(name)
    try:
        tokens = parse_length(USUAL_SEQLEN if seqlen is None else seqlen)
    except ValueError as error:
        raise UserError(str(error)) from None
    if corpus is not None:
        check_name("corpus", corpus, Registry("corpus").names())
        if not pattern.uses_documents:
            raise UserError(f"Mask '{name}' has no documents", todo="Leave the corpus out")
    check_blocks(
        name, pattern.resolve(params), tokens, num_kv_heads, whole_number("The number of GPUs", gpus)
    )
    return build_mask(
        name,
        seqlen=tokens,
        corpus=(corpus or usual_corpus(tokens)) if pattern.uses_documents else None,
        seed=0 if seed is None else seed,
        num_kv_heads=num_kv_heads,
        new_tokens=new_tokens,
        **dict[str, Any](params),
    )


def _refuse_draws(mask: Mask, seed: int | None, draws: int | None) -> None:
    """Raises UserError for what is only of patterns that are drawn. Masks that are built already may be asked
    about in one loop, drawn or not."""
    for name, given in (("seed", seed), ("draws", draws)):
        if given is not None and mask.origin is None:
            raise UserError(f"Mask '{mask.name}' is not drawn", todo=f"Leave {name} out")


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
