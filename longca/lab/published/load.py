"""Published rates of attention as rows, from the YAML files in `data`: one file is one source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from longca.core import Direction, Frozen, Scalar, parse, parse_heads, read_yaml
from longca.lab.studies import Cell, Length

DATA = Path(__file__).parent / "data"
Heads = Annotated[tuple[int, int], BeforeValidator(parse_heads)]


@dataclass(frozen=True)
class PublishedRate:
    """One rate that somebody published, in longca's names."""

    source: str
    """name of the source's file"""
    title: str
    """short name of the source, for tables"""
    url: str
    hardware: str
    """the GPU, as its driver reports it"""
    kind: Literal["kernel", "cp"]
    kernel: str
    """the nearest kernel of longca; under `cp` the one on each GPU"""
    strategy: str | None
    mask: str
    mask_params: Mapping[str, Scalar]
    """those that the source gives"""
    seqlen: int | None
    """tokens over all ranks; None if the source does not give them"""
    world: int | None
    """number of ranks; None if the source does not give it"""
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    direction: Direction
    tflops_per_device: float
    plus_minus: float
    """how far the reading may be off, in TFLOP/s"""
    how: str
    """how the number was read: exact, digitized, reported"""
    note: str
    """what a reader must know to compare it, parts divided by "; "; "" if nothing"""

    @property
    def method(self) -> str:
        """The method in tables, named as a cell names its own."""
        return f"{self.strategy}+{self.kernel}" if self.strategy else self.kernel

    def asks(self, cell: Cell) -> bool:
        """True if the cell asks for what was published: all parameters that the source gives agree. Sources
        give no parameters of strategies."""
        of_rate = (
            self.kind,
            self.kernel,
            self.strategy,
            self.world,
            self.mask,
            self.seqlen,
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            self.dtype,
            self.direction,
        )
        asked = (
            cell.kind,
            cell.kernel,
            cell.strategy,
            cell.world,
            cell.mask,
            cell.seqlen,
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            cell.dtype,
            cell.direction,
        )
        return (
            of_rate == asked
            and cell.new_tokens is None
            and self.mask_params.items() <= cell.mask_params.items()
        )


class Counterpart(Frozen):
    """The method of longca that is nearest to one of a source."""

    kernel: str
    strategy: str | None = None
    note: str = ""
    """in what the two differ"""


class RateTable(Frozen):
    """Rates of several methods along one axis: the length on one device, or the number of ranks."""

    mask: str
    mask_params: dict[str, Scalar] = {}
    direction: Direction
    heads: Heads = (64, 8)
    seqlen: tuple[Length | None, ...] = ()
    """the axis on one device; null: not told"""
    world: tuple[int | None, ...] = ()
    """the axis under context parallelism; null: not told"""
    tokens_per_device: Length | None = None
    """under context parallelism"""
    plus_minus: float | None = Field(None, ge=0)
    """instead of the source's"""
    notes: tuple[str, ...] = ()
    rates: dict[str, tuple[float, ...]]
    """the source's name of a method → TFLOP/s per device; a list of another length than the axis is an
    incomplete reading"""

    @model_validator(mode="after")
    def _one_axis(self) -> Self:
        if bool(self.seqlen) == bool(self.world):
            raise ValueError("a table has one axis, `seqlen` or `world`")
        return self

    def points(self) -> list[tuple[int | None, int | None]]:
        """(tokens over all ranks, ranks) along the axis; None where it is not told."""
        if self.seqlen:
            return [(seqlen, 1) for seqlen in self.seqlen]
        per_device = self.tokens_per_device
        return [(per_device * world if per_device and world else None, world) for world in self.world]


class PublishedSource(Frozen):
    """The content of one file: tables of one source, all on one GPU model, in bf16 and with head dim 128
    unless told."""

    title: str = Field(max_length=20)
    url: str = Field(pattern=r"^https://")
    citation: str
    hardware: str
    how: str
    plus_minus: float = Field(ge=0)
    head_dim: int = 128
    dtype: str = "bf16"
    notes: tuple[str, ...] = ()
    counterparts: dict[str, Counterpart | None]
    """the source's name of a method → longca's; null where longca has nothing like it"""
    tables: tuple[RateTable, ...]

    @model_validator(mode="after")
    def _all_are_named(self) -> Self:
        unnamed = {name for table in self.tables for name in table.rates} - self.counterparts.keys()
        if unnamed:
            raise ValueError(f"no counterpart is named for {', '.join(sorted(unnamed))}")
        return self


def load_sources(folder: Path = DATA) -> Mapping[str, PublishedSource]:
    """Name of the file → what it holds, sorted by name. Raises UserError for a file that is not valid."""
    return {
        path.stem: parse(PublishedSource, read_yaml(path), str(path))
        for path in sorted(folder.glob("*.yaml"))
    }


def load_published(folder: Path = DATA) -> list[PublishedRate]:
    """All rates with a counterpart in longca, in the order of the files. Incomplete readings are left out.

    Raises:
        UserError: a file is not valid.
    """
    return [
        rate
        for name, source in load_sources(folder).items()
        for table in source.tables
        for rate in _rates(name, source, table)
    ]


def _rates(name: str, source: PublishedSource, table: RateTable) -> Iterator[PublishedRate]:
    points = table.points()
    for method, values in table.rates.items():
        counterpart = source.counterparts[method]
        if counterpart is None or len(values) != len(points):
            continue
        note = "; ".join(text for text in (*source.notes, *table.notes, counterpart.note) if text)
        for (seqlen, world), value in zip(points, values, strict=True):
            yield PublishedRate(
                source=name,
                title=source.title,
                url=source.url,
                hardware=source.hardware,
                kind="cp" if counterpart.strategy else "kernel",
                kernel=counterpart.kernel,
                strategy=counterpart.strategy,
                mask=table.mask,
                mask_params=table.mask_params,
                seqlen=seqlen,
                world=world,
                num_q_heads=table.heads[0],
                num_kv_heads=table.heads[1],
                head_dim=source.head_dim,
                dtype=source.dtype,
                direction=table.direction,
                tflops_per_device=value,
                how=source.how,
                note=note,
                plus_minus=source.plus_minus if table.plus_minus is None else table.plus_minus,
            )
