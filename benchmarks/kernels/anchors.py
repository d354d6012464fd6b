"""Compares numbers taken by hand (reports/h200/anchors.csv) with this project's records of the same calls. No
GPU is needed.

    python -m benchmarks.kernels.anchors reports/h200/h200-dense.parquet reports/h200/h200-sparse.parquet \\
        --write docs/results/h200/kernels.md

An anchor is reached if the record's median is at most 5 % below it. Masks that are drawn were not drawn
alike: the nearest of the seeds is taken, and where its density differs by more than 1 %, it is another mask
and says nothing.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from longca.lab.store.load import load
from longca.lab.store.table import derived
from tools.table import Table, add_options

ANCHORS = Path("reports/h200/anchors.csv")
TOLERANCE = 0.05
SAME_DENSITY = 0.01  # relative: above it the two masks are different draws


def compare(anchors: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each anchor and direction: the number taken by hand, the record's, and their
    ratio."""
    rows = []
    for anchor in anchors.itertuples():
        for direction in ("fwd", "bwd"):
            by_hand = getattr(anchor, f"{direction}_tflops")
            if pd.notna(by_hand):
                nearest = _nearest(anchor, direction, records)
                ours = float("nan") if nearest is None else nearest.tflops
                verdict = _verdict(anchor.density, by_hand, nearest)
                rows.append(
                    {
                        "kernel": anchor.kernel,
                        "mask": anchor.mask,
                        "tokens": anchor.seqlen,
                        "direction": direction,
                        "density by hand": anchor.density,
                        "density": float("nan") if nearest is None else nearest.density,
                        "by hand": by_hand,
                        "longca": ours,
                        "ratio": ours / by_hand,
                        "verdict": verdict,
                    }
                )
    return pd.DataFrame(rows)


def _verdict(density: float, by_hand: float, found: Any) -> str:
    if found is None:
        return "not measured"
    if abs(found.density - density) > SAME_DENSITY * density:
        return "another draw"
    return "reached" if found.tflops >= (1 - TOLERANCE) * by_hand else "below"


def table(rows: pd.DataFrame) -> Table:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in rows.verdict.value_counts().items())
    shapes = {
        "density by hand": "{:.3f}",
        "density": "{:.3f}",
        "by hand": "{:.0f}",
        "longca": "{:.0f}",
        "ratio": "{:.2f}",
    }
    lines = tuple(
        tuple("" if pd.isna(value) else shapes.get(name, "{}").format(value) for name, value in row.items())
        for row in rows.to_dict("records")
    )
    return Table(
        "anchors",
        f"TFLOP/s. {len(rows)} numbers: {counts}.",
        tuple(rows.columns),
        lines,
        tuple(rows.to_dict("records")),
        ("kernel", "mask", "direction", "verdict"),
    )


def _nearest(anchor: Any, direction: str, records: pd.DataFrame) -> Any:
    heads = records.num_q_heads.astype(str) + ":" + records.num_kv_heads.astype(str)
    same = records[
        (records.status == "ok")
        & (records.kernel == anchor.kernel)
        & (records["mask"] == anchor.mask)
        & (records.seqlen == anchor.seqlen)
        & (heads == anchor.heads)
        & (records.direction == direction)
    ]
    if anchor.mask.startswith("block_sparse"):
        block = "block=64" if anchor.how.startswith("64") else "block=128"
        same = same[
            same.mask_params.str.contains(block + ",") & ((same.density - anchor.density).abs() < 0.01)
        ]
    if same.empty:
        return None
    return same.loc[(same.density - anchor.density).abs().idxmin()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--anchors", type=Path, default=ANCHORS)
    add_options(parser)
    options = parser.parse_args()
    anchors = pd.read_csv(options.anchors).fillna({"how": ""})
    table(compare(anchors, derived(load(*options.records).records))).publish(options)


if __name__ == "__main__":
    main()
