"""Makes tables of kernels from records: speed under dense and block-sparse masks, and costs before the first
call. No GPU is needed.

    python -m benchmarks.kernels.kernel_tables reports/h200/h200-dense.parquet
    reports/h200/h200-sparse.parquet \\
        --write docs/results/h200/kernels.md
"""

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from longca.core import format_length
from longca.lab.store.load import load
from longca.lab.store.table import derived
from tools.table import Table, add_options

SEQLEN = 32768
SHORT = 8192
HEADS = (64, 8)
Pick = Callable[[pd.DataFrame], pd.DataFrame]


def dense(records: pd.DataFrame) -> Table:
    """Shows TFLOP/s forward / backward at 32K tokens, and the geometric mean over the static masks where a
    kernel has them all."""
    static = records[records.mask_family != "block-sparse"]
    masks = sorted(set(static["mask"]))
    short = f"full, {format_length(SHORT)}"
    columns: dict[str, Pick] = {short: _where("full", SHORT)}
    columns |= {
        mask: _where(mask, SEQLEN)
        for mask in ("full", "causal", "sliding_window", "causal_document", "shared_question")
    }
    rows = []
    for kernel, own in static.groupby("kernel"):
        means = (
            ""
            if set(own[(own.seqlen == SEQLEN) & (own.status == "ok")]["mask"]) != set(masks)
            else _both(own, lambda chosen: chosen[chosen.seqlen == SEQLEN], _geometric_mean)
        )
        equal = _both(own, columns[short], heads=(HEADS[0], HEADS[0]))
        rows.append(
            {
                "kernel": kernel,
                f"{short}, {HEADS[0]}:{HEADS[0]}": equal,
                **{name: _both(own, pick) for name, pick in columns.items()},
                f"all {len(masks)} masks": means,
            }
        )
    caption = (
        f"TFLOP/s forward / backward, head dim 128, bf16; {HEADS[0]}:{HEADS[1]} heads and "
        f"{format_length(SEQLEN)} tokens where "
        "nothing else stands, seed 0; last the geometric mean. Empty: not that mask, or not measured."
    )
    return _table("dense", caption, rows)


def sparse(records: pd.DataFrame) -> Table:
    """Shows TFLOP/s forward / backward at 32K tokens over block masks."""
    blocks = records[(records.mask_family == "block-sparse") & (records.seqlen == SEQLEN)]
    rows = []
    for kernel, own in blocks.groupby("kernel"):
        row = {"kernel": kernel}
        for heads in ((64, 64), (64, 8)):
            for size, density in (
                ("block=64", 0.1),
                ("block=64", 0.5),
                ("block=64", 0.8),
                ("block=128", 0.5),
                ("mean_block=512", 0.5),
            ):
                row[f"{heads[0]}:{heads[1]}, {size.replace('_', ' ').replace('=', ' ')}, {density}"] = _both(
                    own, _blocks(size, density), heads=heads
                )
        rows.append(row)
    caption = (
        f"TFLOP/s forward / backward over block masks, {format_length(SEQLEN)} tokens, by heads, "
        f"block and density."
    )
    return _table("sparse", caption, rows)


def beforehand(records: pd.DataFrame) -> Table:
    """Shows the costs before a kernel's first call: medians and largest over its cells."""
    rows = []
    for kernel, own in records[records.status == "ok"].groupby("kernel"):
        row = {"kernel": kernel, "cells": str(len(own))}
        for column, unit, scale in (
            ("plan_ms", "ms", 1),
            ("compile_ms", "ms", 1),
            ("metadata_bytes", "MB", 1e6),
        ):
            values = (own[column] / scale).dropna()
            row[f"{column.split('_')[0]}, {unit}: median"] = "" if values.empty else _short(values.median())
            row[f"{column.split('_')[0]}, {unit}: most"] = "" if values.empty else _short(values.max())
        rows.append(row)
    caption = (
        "Outside the timed call. Compilers keep what they made on disk, so that a median is one of "
        "warm caches."
    )
    return _table("beforehand", caption, rows)


def _where(mask: str, seqlen: int) -> Pick:
    return lambda own: own[(own["mask"] == mask) & (own.seqlen == seqlen)]


def _blocks(size: str, density: float) -> Pick:
    return lambda own: own[
        own.mask_params.str.split(", ").map(set(size.split()).issubset) & (own.mask_density_asked == density)
    ]


def _both(
    own: pd.DataFrame,
    pick: Pick,
    combine: Callable[[Iterable[float]], float] = max,
    heads: tuple[int, int] = HEADS,
) -> str:
    chosen = pick(
        own[
            (own.status == "ok")
            & (own.seed == 0)
            & (own.num_q_heads == heads[0])
            & (own.num_kv_heads == heads[1])
            & ~own.mask_params.str.contains("paper_compat=True")
        ]
    )
    columns = [chosen[chosen.direction == direction].tflops for direction in ("fwd", "bwd")]
    if all(values.empty for values in columns):
        return ""
    return " / ".join("–" if values.empty else f"{combine(values):.0f}" for values in columns)


def _short(value: float) -> str:
    """Two digits; nothing is said of what is below a hundredth."""
    return "< 0.01" if value < 0.01 else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _table(name: str, caption: str, rows: list[dict[str, Any]]) -> Table:
    columns = tuple(rows[0]) if rows else ("kernel",)
    return Table(name, caption, columns, tuple(tuple(row.values()) for row in rows), tuple(rows), ("kernel",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    add_options(parser)
    options = parser.parse_args()
    records = derived(load(*options.records).records)
    attention = records[(records.kind == "kernel") & ~records.is_control.fillna(False).astype(bool)]
    for table in (dense(attention), sparse(attention), beforehand(attention)):
        table.publish(options)


if __name__ == "__main__":
    main()
