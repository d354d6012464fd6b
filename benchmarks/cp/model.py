"""Compares the time model of virtual ranks with measurements on several GPUs.

    python -m benchmarks.cp.model reports/h200 reports/h200/h200-cp.parquet [--write
    docs/results/h200/context-parallelism.md]

Reads the CSV of `benchmarks.cp.virtual` and records of a study; no GPU is needed. Only cells with the plan
that was modelled are compared: the same schedule and the same sharding. Chunks of heads may differ: cells of
one direction choose them for themselves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cp.cells import DIRECTIONS, OWN
from benchmarks.cp.virtual import NAME
from longca.core import format_length
from longca.lab.ranking.table import has_rests
from longca.lab.store.load import load
from longca.lab.store.table import derived
from tools.table import Table, add_options, read_records

EMPTY = "–"
TOKENS = "tokens: "


def planned_alike(how: str, notes: str) -> bool:
    """Tells whether a line of virtual ranks and a record have the same schedule and sharding."""
    facts = notes.split("; ")
    sharding = next((fact.removeprefix(TOKENS) for fact in facts if fact.startswith(TOKENS)), None)
    if sharding is None:
        return how.startswith("heads among")  # heads alone are divided one way
    return how.startswith(facts[0]) and how.rpartition(", ")[2] == sharding


def compared(lines: Sequence[dict[str, str]], records: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns a record for each line and direction that was measured with the same plan."""
    timed = records[
        (records.status == "ok")
        & (records.kind == "cp")
        & (records.seed == 0)
        & records.mask_density_asked.isna()
        & (records.strategy_params == "")
        & ~has_rests(records)  # virtual ranks are timed without rests
    ]
    measured = {
        (
            row.strategy,
            row.kernel,
            row.mask,
            int(row.world),
            int(row.seqlen) // int(row.world),
            f"{row.num_q_heads}:{row.num_kv_heads}",
            row.direction,
        ): row
        for row in timed.itertuples()
    }
    entries = []
    for line in lines:
        for direction in DIRECTIONS:
            row = measured.get(
                (
                    line["strategy"],
                    line["kernel"],
                    line["mask"],
                    int(line["world"]),
                    int(line["tokens"]),
                    line["heads"],
                    direction,
                )
            )
            modelled = line[f"{direction}_modelled_tflops"]
            if row is not None and modelled and planned_alike(line["how"], row.notes):
                entries.append(
                    {
                        "world": int(line["world"]),
                        "tokens": int(line["tokens"]),
                        "mask": line["mask"],
                        "strategy": line["strategy"],
                        "direction": direction,
                        "modelled_tflops": float(modelled),
                        "measured_tflops": float(row.tflops_per_device),
                        "ratio": float(modelled) / float(row.tflops_per_device),
                    }
                )
    return entries


def table(records: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for world, tokens, mask in dict.fromkeys(
        (record["world"], record["tokens"], record["mask"]) for record in records
    ):
        here = {
            (record["strategy"], record["direction"]): record["ratio"]
            for record in records
            if (record["world"], record["tokens"], record["mask"]) == (world, tokens, mask)
        }
        cells = [
            [f"{here[strategy, way]:.2f}" if (strategy, way) in here else EMPTY for way in DIRECTIONS]
            for strategy in OWN
        ]
        rows.append(
            (
                f"{world} × {format_length(tokens)}",
                mask,
                *(EMPTY if set(two) == {EMPTY} else " / ".join(two) for two in cells),
            )
        )
    caption = "Modelled over measured TFLOP/s, forward / backward."
    if records:
        off = [abs(record["ratio"] - 1) for record in records]
        caption += (
            f" Of {len(records)} cells the model is off by {100 * statistics.median(off):.0f} % in the "
            f"median, {100 * max(off):.0f} % at most."
        )
    return Table(
        "cp_model",
        caption,
        ("GPUs × tokens", "mask", *OWN),
        tuple(rows),
        tuple(records),
        ("GPUs × tokens", "mask"),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.model", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "folder", type=Path, help="folder of the cp_virtual.csv that `benchmarks.cp.virtual` wrote"
    )
    parser.add_argument("records", type=Path, nargs="+", help="of a study")
    add_options(parser)
    options = parser.parse_args(arguments)
    lines = read_records(options.folder, NAME)
    if not lines:
        parser.error(
            f"no {NAME}.csv in {options.folder}; `python -m benchmarks.cp.virtual` makes it on a GPU"
        )
    table(compared(lines, derived(load(*options.records).records))).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
