"""Labels for masks and settings, and points with their spread, as figures and answers share them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.store.table import is_ranked
from longca.store.text import number, plural

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("no documents", "documents", "block-sparse")
FAILURES = ("oom", "incorrect", "error", "timeout")  # it was tried; unsupported and unavailable were not
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
SETTING = {"device": "{}", "heads": "{} heads", "head_dim": "D {}", "dtype": "{}", "corpus_choice": "{}"}


@dataclass(frozen=True)
class Unit:
    """The unit that rates are shown in; `factor` turns TFLOP/s into it."""

    factor: float
    name: str

    def text(self, tflops: float) -> str:
        return f"{number(tflops * self.factor)} {self.name}"

    def span(self, low: float, high: float) -> str:
        return f"{number(low * self.factor)}–{number(high * self.factor)}"


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """The derived table with labels that tell its rows apart.

    Adds:
        heads: "64:8".
        mask_variant: those parameters of the mask in which the table's masks of that name differ, without the density asked.
        mask_label: mask and variant, with the density asked where masks of that name differ in it.
        setting: in which of device, heads, head dim, dtype and corpus the table's rows differ; "" if in none.
        detail: all of these beside the mask's name.
    """
    table = table.copy()
    table["heads"] = [f"{q}:{kv}" for q, kv in zip(table.num_q_heads, table.num_kv_heads, strict=True)]
    params = [dict(pair.split("=", 1) for pair in text.split(", ") if pair) for text in table.mask_params]
    variants, labels, details = [], [], []
    values: dict[tuple[str, str], set[str]] = {}
    for mask, given in zip(table["mask"], params, strict=True):
        for key, value in given.items():
            values.setdefault((mask, key), set()).add(value)
    for mask, given in zip(table["mask"], params, strict=True):
        differing = {key: value for key, value in given.items() if len(values[mask, key]) > 1}
        density = differing.pop("density", None)
        variants.append(" · ".join(f"{key.replace('_', ' ')} {value}" for key, value in differing.items()))
        details.append(join(variants[-1], f"density {density}" if density else ""))
        labels.append(join(mask, details[-1]))
    table["mask_variant"], table["mask_label"] = variants, labels
    corpora = table[table.corpus != ""].groupby(["mask", "seqlen"]).corpus.nunique()
    table["corpus_choice"] = table.corpus if (corpora > 1).any() else ""
    parts = [[form.format(value) if str(value) else "" for value in table[column]] for column, form in SETTING.items()
             if table[column][table[column].astype(str) != ""].nunique() > 1]
    table["setting"] = [join(*row) for row in zip(*parts, strict=True)] if parts else ""
    table["detail"] = [join(detail, setting) for detail, setting in zip(details, table.setting, strict=True)]
    return table


def join(*parts: str) -> str:
    """The parts that are not empty, as one label."""
    return " · ".join(part for part in parts if part)


def mask_order(table: pd.DataFrame) -> list[str]:
    """Mask labels from the densest to the sparsest, family by family; those of one name stay together, by the density asked of them."""
    masks = table.groupby(["mask_family", "mask", "mask_label"], sort=True)[["density", "mask_density_asked"]].mean().reset_index()
    masks["density"] = masks.density.fillna(-1.0)
    masks["share"] = masks.mask_density_asked.fillna(masks.density)
    masks["family"] = [FAMILIES.index(name) for name in masks.mask_family]
    masks["of_name"] = masks.groupby("mask").density.transform("mean")
    masks["numbers"] = [tuple(map(int, re.findall(r"\d+", label))) for label in masks.mask_label]  # so that 64 comes before 128
    return masks.sort_values(["family", "of_name", "mask", "share", "numbers", "mask_label"],
                             ascending=[True, False, True, False, True, True]).mask_label.tolist()


def points(table: pd.DataFrame, by: list[str], value: str, low: str | None = None, high: str | None = None, *,
           unit: str) -> pd.DataFrame:
    """One row for each combination of `by`: seeds of one cell are put together.

    Args:
        value, low, high: columns to take the number and its spread from.
        unit: of these columns.

    Returns:
        by, unit, value (median over seeds), low and high (from the lowest first to the highest third quartile of any seed), noise
        (spread of the least steady cell over its value), num_cells, num_samples, status ("ok", or else the most frequent
        failure) and cell_ids. Only ok rows have numbers.
    """
    import pandas as pd

    found = []
    needed = [*by, value, low or value, high or value, "status", "num_samples", "cell_id"]
    for key, group in table[list(dict.fromkeys(needed))].groupby(by, sort=False, dropna=False):  # fewer columns are cut faster
        ok = group[group.status == "ok"]
        ids = " ".join(group.cell_id)
        row: dict[str, Any] = {**dict(zip(by, key, strict=True)), "unit": unit}
        if len(ok):
            values, lows, highs = (ok[column or value].astype(float) for column in (value, low, high))
            row |= {"value": float(values.median()), "low": float(lows.min()), "high": float(highs.max()),
                    "noise": float(((highs - lows) / values).max())}
        row |= {"num_cells": len(ok), "num_samples": int(ok.num_samples.fillna(0).sum()),
                "status": "ok" if len(ok) else group.status.mode().iloc[0], "cell_ids": ids}
        found.append(row)
    columns = [*by, "unit", "value", "low", "high", "noise", "num_cells", "num_samples", "status", "cell_ids"]
    return pd.DataFrame(found, columns=columns)


def attention(table: pd.DataFrame, kind: str, direction: str | None = None) -> pd.DataFrame:
    """Rows of attention that was tried and may be ranked: no control, nothing unsupported or unavailable, no row "as released"."""
    chosen = table[(table.kind == kind) & is_ranked(table) & table.status.isin(("ok", *FAILURES))]
    return chosen if direction is None else chosen[chosen.direction == direction]


def rate_unit(largest_tflops: float) -> Unit:
    """The unit in which such rates have few digits."""
    return Unit(1e3, "GFLOP/s") if 0 < largest_tflops < 1 else Unit(1.0, "TFLOP/s")


def sampled(data: pd.DataFrame) -> str:
    """The amount of data in a figure: "231 cells, 1,155 samples"."""
    return f"{plural(int(data.num_cells.sum()), 'cell')}, {plural(int(data.num_samples.sum()), 'sample')}"
