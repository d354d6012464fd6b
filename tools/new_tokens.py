"""Writes the rates of docs/guide/kv-cache.md: new tokens after a context, from the committed records of the
study `kv-cache`.

    python -m tools.new_tokens

All lengths and masks are on the study's page; these rows show what a reader needs to choose.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.ranking.table import COLUMNS as OF_RANKING
from longca.lab.ranking.table import RATE, counted
from longca.lab.store.load import load_columns
from longca.lab.store.text import short_device
from tools.pages import ROOT, with_blocks

if TYPE_CHECKING:
    import pandas as pd

RECORDS = ROOT / "reports/h200/kv-cache.parquet"
PAGE = ROOT / "docs/guide/kv-cache.md"
KERNELS = ("band", "fa3", "fa4", "cudnn_flex", "flex_flash", "flex", "fa2", "sdpa")
CASES = (  # (mask, tokens, new tokens)
    ("causal", 8192, 1024),
    ("causal", 131072, 1024),
    ("causal", 131072, 4096),
    ("causal_sliding_window", 32768, 1024),
    ("causal_sliding_window", 32768, 4096),
    ("causal_document", 32768, 1024),
    ("causal_document", 32768, 16384),
    ("speculative_tree", 8192, 16),
    ("speculative_tree", 131072, 16),
    ("speculative_tree", 8192, 256),
)
LONG, CHUNK, DRAFT = 131072, 1024, 16


def rates(records: Path = RECORDS) -> pd.DataFrame:
    """TFLOP/s of each kernel (columns) in each case (rows: mask, tokens, new tokens)."""
    rows, _ = load_columns([records], tuple(dict.fromkeys((*OF_RANKING, "new_tokens"))))
    rows = rows[counted(rows) & (rows.status == "ok") & (rows.kind == "kernel")]
    table = rows.pivot_table(index=["mask", "seqlen", "new_tokens"], columns="method", values=RATE)
    table.attrs["device"] = short_device(rows.device.iloc[0])
    return table


def block(rates: pd.DataFrame) -> str:
    """The part of the page: what the rates say, and the table."""
    few = rates.loc["causal", LONG, CHUNK].dropna()
    tree = rates.loc["speculative_tree", LONG, DRAFT].dropna().sort_values()
    lines = [
        f"**On one {rates.attrs['device']}, {format_length(CHUNK)} new tokens after {format_length(LONG)} "
        f"under `causal` run at up to {few.max():.0f} TFLOP/s (`{few.idxmax()}`). Trees of {DRAFT} drafted "
        f"tokens depend on the kernel most: `{tree.index[-1]}` reaches {tree.iloc[-1]:.0f} TFLOP/s there, "
        f"`{tree.index[-2]}` {tree.iloc[-2]:.0f}.**",
        "",
        "TFLOP/s forward, 64:8 heads, head dim 128, bf16. Empty: the kernel does not run the "
        "mask, or was not asked.",
        "",
        f"| mask | tokens | new | {' | '.join(KERNELS)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(KERNELS)}",
    ]
    for mask, tokens, new in CASES:
        of_case = rates.loc[mask, tokens, new].reindex(list(KERNELS))
        cells = ["" if rate != rate else f"{rate:.0f}" for rate in of_case]
        lines.append(f"| {mask} | {format_length(tokens)} | {format_length(new)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rates: pd.DataFrame) -> str:
    return with_blocks(PAGE, new_tokens=block(rates))


if __name__ == "__main__":
    PAGE.write_text(page(rates()), encoding="utf-8")
