"""Numbers taken by hand beside this project's records of the same calls: reports/h200/anchors.csv against Parquet files.

    python benchmarks/anchors.py reports/h200/h200-dense.parquet reports/h200/h200-sparse.parquet

An anchor is reached if the record's median is at most 5 % below it. Masks that are drawn are not drawn alike: the density
beside each number says how near the two are, and the nearest of the seeds is taken.
"""

import argparse
from pathlib import Path

import pandas as pd

from longca.store.load import load
from longca.store.table import derived

ANCHORS = Path("reports/h200/anchors.csv")
TOLERANCE = 0.05


def compare(anchors: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """One row an anchor and direction: what was taken by hand, what the records say, and their ratio."""
    rows = []
    for anchor in anchors.itertuples():
        for direction in ("fwd", "bwd"):
            by_hand = getattr(anchor, f"{direction}_tflops")
            if pd.notna(by_hand):
                found = _nearest(anchor, direction, table)
                ours = float("nan") if found is None else found.tflops
                verdict = "not measured" if found is None else "reached" if ours >= (1 - TOLERANCE) * by_hand else "below"
                rows.append({"kernel": anchor.kernel, "mask": anchor.mask, "tokens": anchor.seqlen, "direction": direction,
                             "density by hand": anchor.density, "density": float("nan") if found is None else found.density,
                             "by hand": by_hand, "longca": ours, "ratio": ours / by_hand, "verdict": verdict})
    return pd.DataFrame(rows)


def markdown(rows: pd.DataFrame) -> str:
    """The comparison as a Markdown table."""
    lines = ["| " + " | ".join(rows.columns) + " |", "|" + "---|" * len(rows.columns)]
    shapes = {"density by hand": "{:.3f}", "density": "{:.3f}", "by hand": "{:.0f}", "longca": "{:.0f}", "ratio": "{:.2f}"}
    for row in rows.to_dict("records"):
        cells = ("" if pd.isna(value) else shapes.get(name, "{}").format(value) for name, value in row.items())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _nearest(anchor: object, direction: str, table: pd.DataFrame) -> object | None:
    heads = table.num_q_heads.astype(str) + ":" + table.num_kv_heads.astype(str)
    same = table[(table.status == "ok") & (table.kernel == anchor.kernel) & (table["mask"] == anchor.mask)
                 & (table.seqlen == anchor.seqlen) & (heads == anchor.heads) & (table.direction == direction)]
    if anchor.mask.startswith("block_sparse"):
        block = "block=64" if anchor.how.startswith("64") else "block=128"
        same = same[same.mask_params.str.contains(block + ",") & ((same.density - anchor.density).abs() < 0.01)]
    if same.empty:
        return None
    return same.loc[(same.density - anchor.density).abs().idxmin()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--anchors", type=Path, default=ANCHORS)
    options = parser.parse_args()
    anchors = pd.read_csv(options.anchors, keep_default_na=True).fillna({"how": ""})
    rows = compare(anchors, derived(load(*options.records).records))
    print(markdown(rows))
    print(f"\n{(rows.verdict == 'reached').sum()} of {len(rows)} reached, {(rows.verdict == 'below').sum()} below, "
          f"{(rows.verdict == 'not measured').sum()} not measured")


if __name__ == "__main__":
    main()
