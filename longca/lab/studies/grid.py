"""Grids of a study: lists of plug-ins and sizes, and the cells that are their product."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from longca.core import (
    LARGEST_INT,
    MOST_HEADS,
    MOST_RANKS,
    Direction,
    Dtype,
    Frozen,
    Messages,
    Registry,
    Scalar,
    UserError,
    parse,
    parse_heads,
    parse_length,
    unknown,
)
from longca.lab.studies.cell import Cell, InputValues, usual_corpus

MOST_NAMED = 10  # unknown names of a grid in a message


# of a list of a grid; bytes, since file systems allow 255 including a suffix
MOST_VALUES = 10_000
LONGEST_NAME = 200


Length = Annotated[int, BeforeValidator(parse_length)]

MOST_GRIDS = 1_000  # of a study

Choice = str | dict[str, dict[str, Scalar | list[Scalar]]]
"""a plug-in with its parameters: a name, or `name: {parameter: value or list of values}`"""


Check = Literal["sample", "all"]


class Measure(Frozen):
    """Measurement settings. They are part of the method version: after a change, cells are measured again."""

    warmup: int = Field(default=3, ge=0, le=1_000_000)
    """minimum number of untimed calls"""
    warm_seconds: float = Field(default=3.0, ge=0, le=1e6)
    """time limit of untimed calls, which continue until clock and times are steady; 0: only `warmup` calls"""
    repeats: int = Field(default=10, ge=1, le=1_000_000)
    """minimum number of timed calls"""
    precision: float = Field(default=0.005, ge=0, le=1)
    """timed calls until the 95 % interval of their median is this narrow; 0: `repeats`, or three in
    `max_seconds`"""
    max_repeats: int = Field(default=100, ge=1, le=1_000_000)
    """maximum number of timed calls, unless `repeats` is larger"""
    max_seconds: float = Field(default=4.0, gt=0, le=1e6)
    """time limit of timed calls beyond `repeats`"""
    duty: float = Field(default=0.5, gt=0, le=1)
    """busy share of a GPU, which rests after each call to keep its clock; 1, sustained calls, CPUs: no
    rests"""
    timeout_s: float = Field(default=300.0, gt=0, le=1e7)
    """time limit of a cell, which then ends as `timeout`"""
    check: Check = "sample"
    """part of a result that is compared with float64: as much as takes a second, or all"""
    messages: Messages = "nccl"
    """context parallelism: NCCL (gloo on CPUs), or copy engines writing to peer GPUs, else NCCL"""

    @classmethod
    def fixed(cls, **settings: Any) -> "Measure":
        """Fixed numbers of untimed and timed calls without rests, for measurements outside of studies."""
        return cls(warm_seconds=0, precision=0, duty=1, **settings)

    @property
    def most_repeats(self) -> int:
        """Timed calls at most."""
        return max(self.repeats, self.max_repeats) if self.precision else self.repeats


class Grid(Frozen):
    """A grid: the product of its lists."""

    kind: Literal["kernel", "cp"] = "kernel"
    """one device, or context parallelism"""
    kernel: tuple[str, ...]
    """names of `longca list kernels`"""
    strategy: tuple[Choice, ...] = ()
    """for context parallelism: a strategy name, or `name: {parameter: value or list of values}`"""
    world: tuple[Annotated[int, Field(ge=1, le=MOST_RANKS)], ...] = (1,)
    """numbers of ranks"""
    mask: tuple[Choice, ...]
    """a name, or `name: {parameter: value or list of values}`"""
    corpus: tuple[str, ...] = ()
    """sources of document lengths; by default `pile`, and `prolong64k` above 12K tokens; ignored by masks
    without documents"""
    corpus_from: dict[Length, str] = {}
    """first length → corpus; overrides `corpus` from that length on"""
    seqlen: tuple[Length, ...] = ()
    """tokens over all ranks"""
    seqlen_per_rank: tuple[Length, ...] = ()
    """tokens of each rank; a grid has this or `seqlen`"""
    new_tokens: tuple[Length, ...] = ()
    """queries, the last tokens of each sequence; the keys of the others are in a cache. At least 2, since
    decoding is not measured, and fewer than `seqlen`. All tokens are queries if left out"""
    heads: tuple[Annotated[str, BeforeValidator(str)], ...]
    """query heads and KV heads, `64:8`"""
    head_dim: tuple[Annotated[int, Field(ge=1, le=MOST_HEADS)], ...] = (128,)
    """size of one head"""
    dtype: tuple[Dtype, ...] = ("bf16",)
    """type of q, k, v and of the result"""
    direction: tuple[Direction, ...] = ("fwd", "bwd")
    """forward, or backward alone"""
    seed: tuple[Annotated[int, Field(ge=0, le=LARGEST_INT)], ...] = (0,)
    """seeds of random values in the mask"""
    input_values: tuple[InputValues, ...] = ("normal",)
    """q, k, v, output gradient: standard normal, signs (±1), 1 % non-zero, or all 1 (forward only)"""
    sustained: tuple[bool, ...] = (False,)
    """true: calls without pauses, after two seconds of such calls; false: separate calls with a cold L2"""
    measure: Measure | None = None
    """measurement settings of this grid; missing keys are taken from the study"""

    @field_validator(
        "kernel",
        "strategy",
        "world",
        "mask",
        "corpus",
        "seqlen",
        "seqlen_per_rank",
        "new_tokens",
        "heads",
        "head_dim",
        "dtype",
        "direction",
        "seed",
        "input_values",
        "sustained",
        mode="before",
    )
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if len(values) > MOST_VALUES:
            raise ValueError(f"{len(values):,} values are more than {MOST_VALUES:,}")
        return values

    @field_validator("heads")
    @classmethod
    def _heads_divide(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for heads in value:
            parse_heads(heads)
        return value


def _num_cells(grid: Grid) -> int:
    """The number of cells of a grid, with duplicates, computed without creating them."""
    others = (
        grid.kernel,
        grid.world,
        grid.corpus or (None,),
        grid.seqlen or grid.seqlen_per_rank,
        grid.new_tokens or (None,),
        grid.heads,
        grid.head_dim,
        grid.dtype,
        grid.direction,
        grid.seed,
        grid.input_values,
        grid.sustained,
    )
    masks, strategies = (sum(map(_num_variants, entries)) for entries in (grid.mask, grid.strategy))
    return masks * (strategies if grid.strategy else 1) * math.prod(map(len, others))


def _num_variants(entry: Choice) -> int:
    given = [] if isinstance(entry, str) else entry.values()
    return (
        sum(math.prod(len(value) for value in params.values() if isinstance(value, list)) for params in given)
        if given
        else 1
    )


def _wrong_in_grids(data: Any) -> list[str]:
    """Name and parameter errors of a study whose schema validation already failed."""
    grids = data.get("grids") if isinstance(data, dict) else None
    errors: list[UserError] = []
    for number, grid in enumerate(grids[:MOST_GRIDS] if isinstance(grids, list) else ()):
        if isinstance(grid, dict):
            given = _names_in(grid)
            errors += [*_wrong_names(given, f"grid {number + 1}"), *_wrong_params(given)]
    return list(dict.fromkeys(map(str, errors)))


def _names_in(grid: Mapping[str, Any]) -> dict[str, list[Choice]]:
    """The plug-ins that a grid names, by kind, without invalid names and choices, which the schema
    reports."""
    names: dict[str, list[Choice]] = {}
    later = grid.get("corpus_from")
    for kind in ("kernel", "strategy", "corpus", "mask"):
        value = grid.get(kind, ())
        entries = [*value] if isinstance(value, (list, tuple)) else [value]
        entries += later.values() if kind == "corpus" and isinstance(later, dict) else ()
        names[kind] = [
            entry
            for entry in entries
            if isinstance(entry, str) or (kind in ("strategy", "mask") and _is_choice(entry))
        ]
    return names


def _is_choice(entry: Any) -> bool:
    return isinstance(entry, dict) and all(
        isinstance(name, str) and isinstance(given, dict) and all(isinstance(key, str) for key in given)
        for name, given in entry.items()
    )


def _wrong_params(given: dict[str, list[Choice]]) -> list[UserError]:
    """The invalid parameters of these masks and strategies."""
    errors: list[UserError] = []
    for kind in ("strategy", "mask"):
        registry = Registry(kind)  # as below, no registry of strategies by that name
        for entry in _one_name_each([entry for entry in given[kind] if not isinstance(entry, str)]):
            if not set(entry) <= set(registry.names()) or _num_variants(entry) > MOST_VALUES:
                continue
            try:
                _variants(entry, registry)
            except UserError as error:
                errors.append(error)
            except Exception:  # of the plug-in's own code; it is reported once the rest is valid
                continue
    return errors


def _wrong_names(given: dict[str, list[Choice]], where: str) -> list[UserError]:
    """Names for which no plug-in exists."""
    # no literal kind name here: `longca.lab.code.source` would make each job depend on all strategies
    known = {kind: Registry(kind).names() for kind in given}
    names = {
        kind: dict.fromkeys(
            name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)
        )
        for kind, entries in given.items()
    }
    wrong = [(kind, name) for kind in given for name in names[kind] if name not in known[kind]]
    problems = [
        unknown(kind, name, known[kind], todo=f"It stands in {where}") for kind, name in wrong[:MOST_NAMED]
    ]
    if len(wrong) > MOST_NAMED:
        problems.append(UserError(f"{where}: {len(wrong) - MOST_NAMED:,} more names that nothing bears"))
    return problems


def _one_name_each(entries: Sequence[Choice]) -> list[Choice]:
    """The same choices, with mappings of several names split."""
    return [
        choice
        for entry in entries
        for choice in (
            [entry] if isinstance(entry, str) else [{name: given} for name, given in entry.items()]
        )
    ]


def _expand(grid: Grid, mask: Choice, where: str) -> list[Cell]:
    """The cells of a grid with one of its masks."""
    masks = _variants(mask, Registry("mask"))
    plans: list[tuple[str | None, dict[str, Scalar]]] = []
    kind = "strategy"  # as above, no registry of strategies by that name
    for entry in grid.strategy:  # a plain name does not require loading the strategy
        plans += (
            [(entry, {})]
            if isinstance(entry, str)
            else [(plugin.name, params) for plugin, params in _variants(entry, Registry(kind))]
        )
    heads = [parse_heads(text) for text in grid.heads]
    cells = []
    for pattern, params in masks:
        resolved = pattern.Params(**params)
        seeds = grid.seed if pattern.draws(resolved) else grid.seed[:1]
        axes: list[Sequence[Any]] = [
            grid.kernel,
            plans or [(None, {})],
            grid.world,
            grid.corpus or (None,),
            grid.seqlen or grid.seqlen_per_rank,
            grid.new_tokens or (None,),
            heads,
            grid.head_dim,
            grid.dtype,
            grid.direction,
            grid.input_values,
            grid.sustained,
        ]
        for kernel, (strategy, strategy_params), world, corpus, length, new_tokens, (
            num_q_heads,
            num_kv_heads,
        ), head_dim, dtype, direction, values, sustained in itertools.product(*axes):
            seqlen = length * world if grid.seqlen_per_rank else length
            fields: dict[str, Any] = {
                "kind": grid.kind,
                "kernel": kernel,
                "strategy": strategy,
                "strategy_params": strategy_params,
                "world": world,
                "mask": pattern.name,
                "mask_params": params,
                "corpus": _corpus_at(grid, corpus, seqlen) if pattern.uses_documents else None,
                "seqlen": seqlen,
                "new_tokens": new_tokens,
                "num_q_heads": num_q_heads,
                "num_kv_heads": num_kv_heads,
                "head_dim": head_dim,
                "dtype": dtype,
                "direction": direction,
                "seed": seeds[0] if pattern.draws(resolved) else 0,
                "input_values": values,
                "sustained": sustained,
            }
            cell = parse(Cell, fields, where)
            try:
                pattern.check(seqlen, resolved)
            except ValueError as error:
                raise UserError(
                    f"{where}: mask '{pattern.name}' at length {seqlen}", why=str(error)
                ) from None
            cells.append(cell)
            cells += [
                cell.with_seed(seed) for seed in seeds[1:]
            ]  # valid, since the first one is and the seeds of a grid are in bounds
    return cells


def _variants(entry: Choice, registry: Registry) -> list[tuple[Any, dict[str, Scalar]]]:
    """(plug-in, resolved parameters) for each combination of the listed parameter values."""
    variants = []
    for name, given in ({entry: {}} if isinstance(entry, str) else entry).items():
        plugin = registry.load(name)
        lists = [value if isinstance(value, list) else [value] for value in given.values()]
        for values in itertools.product(*lists):
            variants.append((plugin, plugin.resolve(dict(zip(given, values, strict=True)))))
    return variants


def _corpus_at(grid: Grid, corpus: str | None, seqlen: int) -> str:
    reached = [start for start in grid.corpus_from if start <= seqlen]
    return grid.corpus_from[max(reached)] if reached else corpus or usual_corpus(seqlen)
