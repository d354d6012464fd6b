"""Quantities for docs/values.yaml, where `h100` and `h200` are the committed records of one GPU model."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from longca.lab.studies import Cell, load_study
from tools.pages import ROOT
from tools.table import read_records
from tools.values.figures import Block, Figures, Span, block

BEST_OF = ("fa3", "fa4", "flex_flash", "cudnn_flex")  # as in the table of `band` over the quickest of these
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
          "twelve")  # fmt: skip


@dataclass(frozen=True)
class BandRatios:
    """Speeds of band attention beside other kernels in one process, on one GPU."""

    folder: str

    @cached_property
    def records(self) -> list[dict[str, str]]:
        return read_records(ROOT / "reports" / self.folder, "band")

    def reached(self, what: str) -> Figures:
        """Rates beside the measurements, of each machine: `matmul` in TFLOP/s, or `device copy` in TB/s."""
        return Figures(
            float(match[1])
            for where in sorted({record["where"] for record in self.records})
            if (match := re.search(rf"{what} ([\d.]+) T", where))
        )

    def best(self, column: str, direction: str, part: int = 0) -> Figures:
        """A column of the page's table of `band` over the quickest of four others, at all lengths."""
        return block(f"results/{self.folder}/band.md", "band_best").figures(column, part, _=direction)

    def target(self, column: str, rival: str, direction: str, **where: Any) -> Figures:
        """A column of the page's table of targets for `band`: least or mean."""
        targets = block(f"results/{self.folder}/band.md", "band_targets")
        return targets.figures(column, row="band", against=rival, _=direction, **where)

    def over(self, rival: str, direction: str, seqlen: int, mask: str = "", own: str = "band") -> Figures:
        """Speeds of `own` over `rival` (`best`: the quickest of the four) under each static mask, or one."""
        rivals = BEST_OF if rival == "best" else (rival,)
        speeds: dict[str, float] = {}
        others: dict[str, float] = {}
        for record in self.records:
            is_static = record["tflops"] and not float(record["density"])
            if is_static and (int(record["seqlen"]), record["direction"]) == (seqlen, direction):
                name, speed = record["mask"], float(record["tflops"])
                if record["kernel"] == own:
                    speeds[name] = speed
                if record["kernel"] in rivals:
                    others[name] = max(speed, others.get(name, 0))
        return Figures(
            speeds[name] / others[name] for name in speeds if name in others and mask in ("", name)
        )


@dataclass(frozen=True)
class Gpu:
    """The committed records of one GPU model."""

    folder: str

    @cache  # noqa: B019 - two instances live as long as the program
    def table(self, study: str) -> Any:
        """The derived table of a study's cells, without the texts of records and without samples."""
        import pandas as pd
        import pyarrow.parquet as pq

        from longca.lab.store.table import of_grid

        path = ROOT / "reports" / self.folder / f"{study}.parquet"
        columns = [name for name in pq.read_schema(path).names if name not in ("record", "samples_ms")]
        return of_grid(pd.read_parquet(path, columns=columns))

    def cells(self, study: str, status: str | None = None) -> int:
        """Count of the cells with records, of all or of one status. A control has several records."""
        table = self.table(study)
        return int((table if status is None else table.loc[table.status == status]).cell_id.nunique())

    def asked(self, study: str) -> int:
        """Count of the cells of a study."""
        return cells(study)

    def missing(self, study: str, **fields: Any) -> int:
        """Count of the study's cells without a record, of those with these fields alone."""
        settled = set(self.table(study).cell_id)
        return sum(
            cell.cell_id not in settled
            and all(getattr(cell, name) == value for name, value in fields.items())
            for cell in _cells_of(study)
        )

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

    def mean_rate(self, kernel: str, direction: str, part: int | None = None) -> float:
        """TFLOP/s with 64:8 heads at 32K, the geometric mean over the static masks, as on the page.

        Args:
            part: which number of the cell it is, where a kernel has one direction alone.
        """
        table = self.block("kernels", "dense")
        column = next(name for name in table.columns if name.startswith("all "))
        return table.figure(column, ("fwd", "bwd").index(direction) if part is None else part, kernel=kernel)

    def rate(self, study: str, kernel: str, mask: str, seqlen: int, direction: str) -> float:
        """TFLOP/s of a kernel on one GPU with 64:8 heads."""
        (rate,) = self._where(
            study,
            {
                "kind": "kernel",
                "kernel": kernel,
                "mask": mask,
                "seqlen": seqlen,
                "direction": direction,
                "num_q_heads": 64,
                "num_kv_heads": 8,
                "status": "ok",
            },
        ).tflops
        return float(rate)

    def over_best(self, direction: str, num_kv_heads: int) -> Figures:
        """Rates of `band` over the quickest other kernel.

        Of each static mask and length from 8K on, with 64 query heads and seed 0.
        """
        return _over_best(self.table(f"{self.folder}-dense"), direction, num_kv_heads)

    @cached_property
    def band(self) -> BandRatios:
        """Band attention beside others, in one process."""
        return BandRatios(self.folder)

    def sparse_over_best(self, direction: str, num_kv_heads: int, block: str) -> Figures:
        """The same of block-sparse masks, for parameters that begin so: `block=64,` or `mean_block`."""
        table = self.table(f"{self.folder}-sparse")
        table = table[table.mask_params.str.contains(block, regex=False)]
        return _over_best(table, direction, num_kv_heads)

    def copy_engines(self) -> Figures:
        """Rates by copy engines over those by NCCL: 4 GPUs of 32K tokens under documents, all strategies."""
        import pandas as pd

        tables = [
            pd.read_csv(ROOT / f"reports/{self.folder}/cp_try_4x32K_{way}.csv").set_index(
                ["mask", "kernel", "strategy"]
            )
            for way in ("symmetric", "nccl")
        ]
        ratios = tables[0][["fwd_tflops", "bwd_tflops"]] / tables[1][["fwd_tflops", "bwd_tflops"]]
        return Figures(ratios.drop(index="alone", level="strategy").to_numpy().ravel())

    def fitted(self, kernel: str | None = None) -> int:
        """Count of the records that predictions of a kernel, or of all, are fitted on."""
        return sum(
            model["by_mask"]["num_records"] for model in self._models() if kernel in (None, model["kernel"])
        )

    def fitted_kernels(self) -> int:
        """Count of the kernels that predictions are fitted for."""
        return len({model["kernel"] for model in self._models()})

    def _models(self) -> list[dict[str, Any]]:
        return json.loads((ROOT / f"longca/predict/models/{self.folder}.json").read_text(encoding="utf-8"))[
            "models"
        ]

    def block(self, page: str, name: str) -> Block:
        """A block of one of this GPU's pages of results."""
        return block(f"results/{self.folder}/{page}.md", name)

    def _where(self, study: str, fields: dict[str, Any]) -> Any:
        table = self.table(study)
        for name, value in fields.items():
            table = table[table[name].isin(value) if isinstance(value, tuple) else table[name] == value]
        return table


def _over_best(table: Any, direction: str, num_kv_heads: int) -> Figures:
    table = table[
        (table.kind == "kernel")
        & (table.status == "ok")
        & (table.direction == direction)
        & (table.num_q_heads == 64)
        & (table.num_kv_heads == num_kv_heads)
        & (table.seqlen >= 8192)
        & (table.seed == 0)
        & ~table.is_control.fillna(False).astype(bool)
        & ~table.mask_params.str.contains("paper_compat=True")
        & (table.kernel != "band_atomic")
    ]
    wide = table.pivot_table(
        index=["mask", "mask_params", "seqlen"], columns="kernel", values="tflops", aggfunc="max"
    )
    return Figures((wide["band"] / wide.drop(columns="band").max(axis="columns")).dropna())


def compared(first: Gpu, second: Gpu, *directions: str) -> Figures:
    """Times of the first GPU over those of the second.

    Of each dense or block-sparse call that both have timed, of other kernels than `band`.
    """
    import pandas as pd

    def times(gpu: Gpu) -> Any:
        frames = [gpu.table(f"{gpu.folder}-{part}") for part in ("dense", "sparse")]
        table: Any = pd.concat(
            [
                frame[["cell_id", "kernel", "status", "direction", "is_control", "time_ms_median"]]
                for frame in frames
            ]
        )
        table = table[
            (table.status == "ok")
            & table.direction.isin(directions)
            & ~table.is_control.fillna(False).astype(bool)
            & ~table.kernel.isin(("band", "band_atomic"))
        ]
        return table.drop_duplicates("cell_id").set_index("cell_id").time_ms_median

    both = pd.concat([times(first), times(second)], axis="columns", join="inner", keys=("first", "second"))
    return Figures(both["first"] / both["second"])


def area(mask: str, seqlen: int) -> int:
    """Visible pairs of a mask with its default parameters."""
    from longca.masks import build_mask

    return build_mask(mask, seqlen=seqlen).area


def sustained_gain(gpu: Gpu, values: str) -> float:
    """Rate of sustained calls on other inputs over that on standard normal ones: the median over settings."""
    from longca.lab.report.questions.power import effects, power

    return next(effect.rate for effect in effects(power(gpu.table("power"))) if effect.values == values)


def builds(version: str) -> int:
    """Count of the Hopper builds that tests compile under a version of Triton."""
    return len(json.loads((ROOT / "tests/ops/band_builds.json").read_text(encoding="utf-8"))[version])


def lines(path: str) -> int:
    """Count of the rows of a CSV file of the project."""
    with (ROOT / path).open(newline="", encoding="utf-8") as file:
        return sum(1 for _ in csv.DictReader(file))


def word(count: int) -> str:
    """A count up to twelve as a word."""
    return _WORDS[count] if count < len(_WORDS) else f"{count:,}"


def cells(study: str) -> int:
    """Count of the cells that a study asks for."""
    return len(_cells_of(study))


@cache
def _cells_of(study: str) -> list[Cell]:
    return list(load_study(study).cells())


@cache
def names() -> dict[str, Any]:
    """All that an expression may name."""
    from longca.core import Registry

    def count(kind: str) -> int:
        return len(Registry(kind).names())

    return {
        "h100": Gpu("h100"),
        "h200": Gpu("h200"),
        "compared": compared,
        "block": block,
        "cells": cells,
        "word": word,
        "area": area,
        "sustained_gain": sustained_gain,
        "builds": builds,
        "lines": lines,
        "count": count,
        "Figures": Figures,
        "Span": Span,
        "min": min,
        "max": max,
        "len": len,
        "abs": abs,
        "sum": sum,
        "round": round,
    }
