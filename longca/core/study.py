"""The study: a YAML grid of cells, and the way to measure them."""

import itertools
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from longca.core.cell import Cell, Direction, Dtype, InputValues, Scalar
from longca.core.checkout import in_project
from longca.core.errors import UserError, raise_all, unknown
from longca.core.plugin import Registry
from longca.core.schema import Frozen, parse, read_yaml
from longca.core.units import parse_heads, parse_length

STUDIES = Path("config/studies")

Length = Annotated[int, BeforeValidator(parse_length)]
Choice = str | dict[str, dict[str, Scalar | list[Scalar]]]
"""a plug-in with its parameters: a name, or `name: {parameter: value or list of values}`"""
Messages = Literal["nccl", "symmetric"]


class Measure(Frozen):
    """The way each cell is measured. It is part of the method version: after a change, cells are measured again."""

    warmup: int = Field(default=3, ge=0)
    """untimed calls before the samples"""
    repeats: int = Field(default=10, ge=1)
    """timed calls at most"""
    max_seconds: float = Field(default=10.0, gt=0)
    """timed calls stop after this long, but never before three"""
    timeout_s: float = Field(default=300.0, gt=0)
    """a cell that is not done by then ends as `timeout`"""
    messages: Messages = "nccl"
    """of context parallelism, from rank to rank: by NCCL (gloo on CPUs), or by copy engines straight into the memory of another GPU of
    the machine; where they cannot, by NCCL, and the record says why"""


class Grid(Frozen):
    """The product of its lists."""

    kind: Literal["kernel", "cp"] = "kernel"
    """one device, or context parallelism"""
    kernel: tuple[str, ...]
    """names of `longca list kernels`"""
    strategy: tuple[Choice, ...] = ()
    """of context parallelism: a name of `longca list strategies`, or `name: {parameter: value or list of values}`"""
    world: tuple[Annotated[int, Field(ge=1)], ...] = (1,)
    """numbers of ranks"""
    mask: tuple[Choice, ...]
    """a name, or `name: {parameter: value or list of values}`"""
    corpus: tuple[str, ...] = ("pile",)
    """where document lengths come from; masks without documents ignore it"""
    corpus_from: dict[Length, str] = {}
    """first length → corpus; overrides `corpus` from that length on"""
    seqlen: tuple[Length, ...] = ()
    """tokens over all ranks"""
    seqlen_per_rank: tuple[Length, ...] = ()
    """tokens of each rank; a grid has this or `seqlen`"""
    heads: tuple[Annotated[str, BeforeValidator(str)], ...]
    """query heads and KV heads, `64:8`"""
    head_dim: tuple[int, ...] = (128,)
    """size of one head"""
    dtype: tuple[Dtype, ...] = ("bf16",)
    """type of q, k, v and of the result"""
    direction: tuple[Direction, ...] = ("fwd", "bwd")
    """forward, or backward alone"""
    seed: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    """of all that is drawn in the mask"""
    input_values: tuple[InputValues, ...] = ("normal",)
    """what q, k, v and the gradient of the output hold: standard normal values, their signs alone (±1), 1 % of them, or 1 everywhere
    (forward only)"""
    sustained: tuple[bool, ...] = (False,)
    """true: calls follow each other without a pause, after two seconds of such calls; else each call is timed alone, on a cold L2"""
    measure: Measure | None = None
    """how its cells are measured, where not as the rest; keys that are left out are the study's"""

    @field_validator("kernel", "strategy", "world", "mask", "corpus", "seqlen", "seqlen_per_rank", "heads", "head_dim",
                     "dtype", "direction", "seed", "input_values", "sustained", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return list(value) if isinstance(value, (list, tuple)) else [value]

    @field_validator("heads")
    @classmethod
    def _heads_divide(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for heads in value:
            parse_heads(heads)
        return value


class Study(Frozen):
    """A named list of grids."""

    name: str = ""
    """names the folder of results; the file's name if empty"""
    title: str = ""
    """stands above the page"""
    seed: int = 0
    """order in which the cells are measured"""
    measure: Measure = Measure()
    """how each cell is measured"""
    grids: tuple[Grid, ...] = Field(min_length=1)
    """cells are the union of all grids"""

    @model_validator(mode="before")
    @classmethod
    def _complete_measure_of_grids(cls, data: Any) -> Any:
        """What a grid does not say of its `measure` is the study's."""
        if not isinstance(data, dict) or not isinstance(data.get("grids"), (list, tuple)):
            return data
        common = data.get("measure")
        if not isinstance(common, dict):
            return data
        grids = [grid | {"measure": common | grid["measure"]}
                 if isinstance(grid, dict) and isinstance(grid.get("measure"), dict) else grid for grid in data["grids"]]
        return data | {"grids": grids}

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if "/" in value or value in (".", ".."):
            raise ValueError("it names the folder of the study's results, which lies in `results`")
        return value

    def cells(self) -> list[Cell]:
        """All cells, each once, in the order of the file. Raises UserError for a name or value that cannot be."""
        return [cell for cell, _ in self._by_id.values()]

    def measure_of(self, cell: Cell) -> Measure:
        """How this cell is measured: as the first grid says that has it, and otherwise as the study does."""
        if all(grid.measure is None for grid in self.grids):
            return self.measure
        found = self._by_id.get(cell.cell_id)
        return self.measure if found is None else found[1]

    @cached_property
    def _by_id(self) -> dict[str, tuple[Cell, Measure]]:
        found: dict[str, tuple[Cell, Measure]] = {}
        problems: list[UserError] = []
        for number, grid in enumerate(self.grids):
            where = f"study '{self.name}', grid {number + 1}"
            wrong = _wrong_names(grid, where)
            problems += wrong
            try:
                for cell in () if wrong else _expand(grid, where):
                    found.setdefault(cell.cell_id, (cell, grid.measure or self.measure))
            except UserError as error:
                problems.append(error)
        raise_all(f"Study '{self.name}'", problems)
        if not found:
            raise UserError(f"Study '{self.name}' has no cells", why="its grids are empty",
                            todo="Give each grid at least one kernel, mask, length and head count")
        return found


def study_path(name_or_path: str, folder: Path | None = None) -> Path:
    """The file of the study of that name in `config/studies`, or that path itself."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    folder = in_project(STUDIES) if folder is None else folder
    path = folder / f"{name_or_path}.yaml"
    if not path.exists():
        raise unknown("study", name_or_path, [file.stem for file in folder.glob("*.yaml")],
                      todo=f"Studies are the files in {folder}/")
    return path


def load_study(name_or_path: str, folder: Path | None = None) -> Study:
    """The study of that name, or in that file. Raises UserError."""
    path = study_path(name_or_path, folder)
    data = read_yaml(path)
    if isinstance(data, dict):
        data.setdefault("name", path.stem)
    return parse(Study, data, str(path))


def _wrong_names(grid: Grid, where: str) -> list[UserError]:
    """The names that no plug-in bears."""
    strategies, masks = ([name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)]
                         for entries in (grid.strategy, grid.mask))
    given = {"kernel": grid.kernel, "strategy": strategies, "corpus": (*grid.corpus, *grid.corpus_from.values()), "mask": masks}
    # no registry of strategies by that name: `longca.core.source` would let every job of the workflow depend on all their code
    known = {kind: Registry(kind).names() for kind in given}
    return [unknown(kind, name, known[kind], todo=f"It stands in {where}")
            for kind, names in given.items() for name in names if name not in known[kind]]


def _expand(grid: Grid, where: str) -> list[Cell]:
    if bool(grid.seqlen) == bool(grid.seqlen_per_rank):
        raise UserError(f"{where}: the lengths are not clear", todo="Give either `seqlen` or `seqlen_per_rank`")
    masks = [variant for entry in grid.mask for variant in _variants(entry, Registry("mask"))]
    plans: list[tuple[str | None, dict[str, Scalar]]] = []
    kind = "strategy"  # as above, no registry of strategies by that name
    for entry in grid.strategy:  # a plain name needs no look into the strategy
        plans += [(entry, {})] if isinstance(entry, str) else [
            (plugin.name, params) for plugin, params in _variants(entry, Registry(kind))]
    heads = [parse_heads(text) for text in grid.heads]
    cells = []
    for pattern, params in masks:
        resolved = pattern.Params(**params)
        seeds = grid.seed if pattern.draws(resolved) else grid.seed[:1]
        axes: list[Sequence[Any]] = [
            grid.kernel, plans or [(None, {})], grid.world, grid.corpus, grid.seqlen or grid.seqlen_per_rank, heads, grid.head_dim,
            grid.dtype, grid.direction, grid.input_values, grid.sustained]
        for (kernel, (strategy, strategy_params), world, corpus, length, (num_q_heads, num_kv_heads), head_dim, dtype, direction, values,
             sustained) in itertools.product(*axes):
            seqlen = length * world if grid.seqlen_per_rank else length
            fields: dict[str, Any] = {
                "kind": grid.kind, "kernel": kernel, "strategy": strategy, "strategy_params": strategy_params,
                "world": world, "mask": pattern.name, "mask_params": params,
                "corpus": _corpus_at(grid, corpus, seqlen) if pattern.uses_documents else None,
                "seqlen": seqlen, "num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
                "dtype": dtype, "direction": direction, "seed": seeds[0] if pattern.draws(resolved) else 0,
                "input_values": values, "sustained": sustained}
            cell = parse(Cell, fields, where)
            try:
                pattern.check(seqlen, resolved)
            except ValueError as error:
                raise UserError(f"{where}: mask '{pattern.name}' at length {seqlen}", why=str(error)) from None
            cells.append(cell)
            cells += [cell.with_seed(seed) for seed in seeds[1:]]  # valid as the first one is: a grid's seeds are in bounds
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


def _corpus_at(grid: Grid, corpus: str, seqlen: int) -> str:
    reached = [start for start in grid.corpus_from if start <= seqlen]
    return grid.corpus_from[max(reached)] if reached else corpus
