"""The quantities that sentences of docs/values.yaml are made of. Names `h100` and `h200` are the committed records of one GPU model."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from benchmarks.band import tables as band_tables
from longca.core.study import load_study
from tools.pages import ROOT

if TYPE_CHECKING:
    import pandas as pd

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_FIGURE = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Span:
    """Two ends, which a format shows as `0.97 to 1.02`, or as one number where they look alike."""

    least: float
    most: float

    def __format__(self, spec: str) -> str:
        least, most = format(self.least, spec), format(self.most, spec)
        return least if least == most else f"{least} to {most}"


class Figures(tuple[float, ...]):
    """Numbers of which sentences give the ends and the middle."""

    span = property(lambda self: Span(min(self), max(self)))
    percent = property(lambda self: Figures(100 * number for number in self))
    gain = property(lambda self: Figures(100 * (number - 1) for number in self))
    """percent above 1, as of a ratio"""
    loss = property(lambda self: Figures(100 * (1 - number) for number in self))

    least = property(min)
    most = property(max)
    mean = property(statistics.fmean)
    median = property(statistics.median)
    geometric = property(statistics.geometric_mean)

    def above(self, limit: float) -> int:
        """Count of the numbers that are at least `limit`."""
        return sum(number >= limit for number in self)

    def below(self, limit: float) -> int:
        """Count of the numbers that are less than `limit`."""
        return sum(number < limit for number in self)


@dataclass(frozen=True)
class Block:
    """A block that a tool has written into a page: its caption, and its table as texts."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def figures(self, column: str | int, part: int = 0, **where: str) -> Figures:
        """The numbers of a column, of the rows whose columns hold these words.

        Args:
            column: its heading, or its place from 0 where headings repeat.
            part: which number of a cell with several, as of `forward / backward`.
            where: column → word, `_` for blanks and `first` for the first column.

        Raises:
            ValueError: no cell of that kind has a number.
        """
        at = column if isinstance(column, int) else self.columns.index(column)
        found = []
        for row in self.rows:
            if len(row) != len(self.columns):  # of a second table
                continue
            cells = dict(zip((name.replace(" ", "_") or "_" for name in self.columns), row, strict=True)) | {"first": row[0]}
            numbers = _FIGURE.findall(row[at])
            if all(cells[name] == word for name, word in where.items()) and len(numbers) > part:
                found.append(_number(numbers[part]))
        if not found:
            raise ValueError(f"no cell of column '{column}' has a number where {where}")
        return Figures(found)

    def figure(self, column: str | int, part: int = 0, **where: str) -> float:
        """The only number of that kind."""
        (number,) = self.figures(column, part, **where)
        return number

    @property
    def memory(self) -> Figures:
        """Of a block of training curves: the peak memory of a rank with each strategy, over that of one rank."""
        (row,) = [row for row in self.rows if row[0].startswith("peak memory of a rank")]
        alone, *ranks = (_number(_FIGURE.findall(cell)[0]) for cell in row[1:])
        return Figures(rank / alone for rank in ranks)

    def having(self, column: str, word: str) -> int:
        """Count of the rows with this word in a column."""
        return sum(row[self.columns.index(column)] == word for row in self.rows)

    def said(self, pattern: str) -> float:
        """The number at `#` in the caption: `said("# cells")`."""
        before, _, after = pattern.partition("#")
        match = re.search(re.escape(before) + rf"({_FIGURE.pattern})" + re.escape(after), self.caption)
        if match is None:
            raise ValueError(f"the caption does not say '{pattern}'")
        return _number(match[1])


def _number(text: str) -> float:
    value = float(text.replace(",", "").replace("−", "-"))
    return int(value) if value.is_integer() and "." not in text else value


@cache
def block(page: str, name: str) -> Block:
    """The block `name` of a page below docs/.

    Raises:
        ValueError: there is none.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", text, re.DOTALL)
    if match is None:
        raise ValueError(f"{page} has no block '{name}'")
    lines = match[1].splitlines()
    table = [_cells(line) for line in lines if line.startswith("|")]
    return Block("\n".join(line for line in lines if not line.startswith("|")), table[0] if table else (), tuple(table[2:]))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))


@dataclass(frozen=True)
class BandRatios:
    """Speeds of band attention over other kernels, from `benchmarks.band.compare` on one GPU."""

    records: tuple[band_tables.Record, ...]

    def reached(self, what: str) -> Figures:
        """Rates beside the measurements, of each machine: `matmul` in TFLOP/s, or `device copy` in TB/s."""
        return Figures(float(match[1]) for where in sorted({record.where for record in self.records})
                       if (match := re.search(rf"{what} ([\d.]+) T", where)))

    def best(self, column: str, direction: str) -> Figures:
        """A column of the table of `beside_best`, at all lengths: mean, least, masks, enough."""
        return Figures(row[column] for row in band_tables.beside_best(self.records).records if row["direction"] == direction)

    def target(self, column: str, rival: str, direction: str, seqlen: int | None = None) -> Figures:
        """A column of the table of targets for `band`: least or mean."""
        return Figures(row[column] for row in band_tables.targets(self.records).records
                       if row["row"] == band_tables.OURS and row["against"] == rival and row["direction"] == direction
                       and seqlen in (None, row["tokens"]))

    def over(self, rival: str, direction: str, seqlen: int, mask: str | None = None, own: str = band_tables.OURS) -> Figures:
        """Speeds of `own` over `rival` (`best`: the quickest of the four) under each static mask."""
        rivals = band_tables.BEST_OF if rival == "best" else (rival,)
        speeds: dict[str, float] = {}
        others: dict[str, float] = {}
        for record in self.records:
            if record.tflops and not record.density and (record.seqlen, record.direction) == (seqlen, direction):
                if record.kernel == own:
                    speeds[record.mask] = record.tflops
                if record.kernel in rivals:
                    others[record.mask] = max(record.tflops, others.get(record.mask, 0))
        return Figures(speeds[name] / others[name] for name in speeds if name in others and mask in (None, name))


@dataclass(frozen=True)
class Gpu:
    """The committed records of one GPU model."""

    folder: str

    @cache  # noqa: B019 - two instances live as long as the program
    def table(self, study: str) -> pd.DataFrame:
        """The derived table of a study, without its records and samples."""
        import pandas as pd
        import pyarrow.parquet as pq

        path = ROOT / "reports" / self.folder / f"{study}.parquet"
        columns = [name for name in pq.read_schema(path).names if name not in ("record", "samples_ms")]
        return pd.read_parquet(path, columns=columns)

    def cells(self, study: str, status: str | None = None) -> int:
        """Count of records, of all or of one status."""
        table = self.table(study)
        return len(table) if status is None else int((table.status == status).sum())

    def asked(self, study: str) -> int:
        """Count of the cells of a study."""
        return len(list(load_study(study).cells()))

    def missing(self, study: str, **fields: Any) -> int:
        """Count of the study's cells without a record, of those with these fields alone."""
        settled = set(self.table(study).cell_id)
        return sum(cell.cell_id not in settled and all(getattr(cell, name) == value for name, value in fields.items())
                   for cell in load_study(study).cells())

    def hours(self, study: str, **fields: Any) -> float:
        """GPU hours that the records took, those of all ranks of a cell together."""
        table = self._where(study, fields)
        return float((table.seconds * table.world.fillna(1)).sum()) / 3600

    def minutes(self, study: str, **fields: Any) -> float:
        """Minutes that the records took one after another."""
        return float(self._where(study, fields).seconds.sum()) / 60

    def count(self, study: str, **fields: Any) -> int:
        """Count of the records with these values."""
        return len(self._where(study, fields))

    def samples(self, study: str) -> Figures:
        """Samples of each timed cell."""
        return Figures(self.table(study).num_samples.dropna())

    def noisy(self, study: str, limit: float = 0.1) -> int:
        """Count of the timed cells whose middle half of samples is wider than `limit` of the median."""
        return int((self.table(study).noise > limit).sum())

    def mean_rate(self, kernel: str, direction: str, seqlen: int = 32768) -> float:
        """TFLOP/s, the geometric mean over the static masks with 64:8 heads, as the table of dense masks shows it."""
        part = 0 if direction == "fwd" else 1
        column = next(name for name in block(f"results/{self.folder}/kernels.md", "dense").columns if name.startswith("all "))
        return block(f"results/{self.folder}/kernels.md", "dense").figure(column, part, kernel=kernel)

    def over_best(self, direction: str, num_kv_heads: int, least: int = 8192, kernel: str = "band") -> Figures:
        """Rates of a kernel over the quickest other one, of each static mask, length from `least` on, and seed."""
        table = self.table(f"{self.folder}-dense")
        table = table[(table.kind == "kernel") & (table.status == "ok") & (table.direction == direction) & (table.num_q_heads == 64)
                      & (table.num_kv_heads == num_kv_heads) & (table.seqlen >= least) & (table.seed == 0)
                      & ~table.is_control.fillna(False).astype(bool) & ~table.mask_params.str.contains("paper_compat=True")]
        table = table[(table.kernel == kernel) | ~table.kernel.isin(("band", "band_atomic"))]
        wide = table.pivot_table(index=["mask", "mask_params", "seqlen"], columns="kernel", values="tflops", aggfunc="max")
        ratios = (wide[kernel] / wide.drop(columns=kernel).max(axis="columns")).dropna()
        return Figures(ratios)

    @cached_property
    def band(self) -> BandRatios:
        """Band attention beside others, in one process."""
        return BandRatios(tuple(band_tables.read(ROOT / "reports" / self.folder)))

    def block(self, page: str, name: str) -> Block:
        """A block of one of this GPU's pages of results."""
        return block(f"results/{self.folder}/{page}.md", name)

    def _where(self, study: str, fields: dict[str, Any]) -> pd.DataFrame:
        table = self.table(study)
        for name, value in fields.items():
            table = table[table[name].isin(value) if isinstance(value, tuple) else table[name] == value]
        return table


def compared(first: Gpu, second: Gpu, direction: str) -> Figures:
    """Times of the first GPU over those of the second, of each dense or block-sparse call of a kernel that both have timed."""
    import pandas as pd

    def times(gpu: Gpu) -> pd.Series:
        frames = [gpu.table(f"{gpu.folder}-{part}") for part in ("dense", "sparse")]
        table = pd.concat([frame[["cell_id", "kernel", "status", "direction", "is_control", "time_ms_median"]] for frame in frames])
        table = table[(table.status == "ok") & (table.direction == direction) & ~table.is_control.fillna(False).astype(bool)
                      & ~table.kernel.isin(("band", "band_atomic"))]
        return table.drop_duplicates("cell_id").set_index("cell_id").time_ms_median

    both = pd.concat([times(first), times(second)], axis="columns", join="inner", keys=("first", "second"))
    return Figures(both["first"] / both["second"])


def area(mask: str, seqlen: int) -> int:
    """Visible pairs of a mask with its default parameters."""
    from longca.masks import build_mask

    return build_mask(mask, seqlen=seqlen).area


def sustained_gain(gpu: Gpu, values: str) -> float:
    """How many times as fast sustained calls are on other inputs than standard normal ones: the median over settings."""
    from longca.paper.analysis.power import effects, power

    return next(effect.rate for effect in effects(power(gpu.table("power"))) if effect.values == values)


def builds(version: str) -> int:
    """Count of the Hopper builds that tests compile under a version of Triton."""
    import json

    return len(json.loads((ROOT / "tests/ops/band_builds.json").read_text(encoding="utf-8"))[version])


def word(count: int) -> str:
    """A count up to twelve as a word."""
    return _WORDS[count] if count < len(_WORDS) else f"{count:,}"


def cells(study: str) -> int:
    """Count of the cells that a study asks for."""
    return len(list(load_study(study).cells()))


@cache
def names() -> dict[str, Any]:
    """All that an expression may name."""
    from longca.core.plugin import Registry

    def count(kind: str) -> int:
        return len(Registry(kind).names())

    return {"h100": Gpu("h100"), "h200": Gpu("h200"), "compared": compared, "block": block, "cells": cells, "word": word,
            "area": area, "sustained_gain": sustained_gain, "builds": builds, "count": count,
            "Figures": Figures, "Span": Span, "min": min, "max": max, "len": len, "abs": abs, "sum": sum, "round": round}
