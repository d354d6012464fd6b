"""Bytes that USP sends between nodes and inside them, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.cp.partition import RANKS_PER_NODE
from longca.lab.paper.analysis.usp_groups import HEAD_DIM, HEAD_RANKS, PLACEMENTS, TOKENS, span, usp_bytes
from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.store.text import format_bytes, number, plural

if TYPE_CHECKING:
    import pandas as pd


class UspGroupsTable(PaperTable):
    label = "Groups of USP, in numbers"
    section = "released"
    number = "defect F12, in numbers"
    order = 40
    needs_records = False
    caption = (
        f"Bytes that a rank sends in one call under a full mask, {TOKENS // 1024}K tokens a rank, bf16, "
        f"head dim {HEAD_DIM}, {HEAD_RANKS} ranks a head group, {RANKS_PER_NODE} GPUs a node; counted from "
        "the plans that this project runs: the mean over ranks, and the busiest rank. Released: neighbours "
        "form rings, and ranks of a head group are far apart. Right: neighbours divide heads. Hops are "
        "steps in which a rank sends KV to another node, of all its steps. KV travel beside kernels; the "
        "released all-to-alls come before and after all kernels, so that nothing hides them."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        return usp_bytes()

    def title(self, data: pd.DataFrame) -> str:
        rows = data[data.ratio.notna()]
        more = int((rows.ratio_busiest > 1).sum())
        return (
            f"Groups of USP as released: in {more} of {plural(len(rows), 'case')} the busiest rank sends "
            f"more between nodes, and in {int((rows.ratio > 1).sum())} the mean rank; over all cases the "
            f"busiest rank sends {span(rows.ratio_busiest, number)} times as much"
        )

    def cells(self, data: pd.DataFrame) -> Cells:
        header = ["heads", "pass", "ranks", "ring"]
        for words in PLACEMENTS:
            header += [
                f"{words}: all-to-all between nodes",
                "KV between nodes",
                "busiest rank",
                "inside a node",
                "hops between nodes",
            ]
        return Cells(
            (*header, "released over right", "of the busiest"),
            tuple(_cells(row) for row in data.itertuples()),
            num_keys=4,
        )


def _cells(row: Any) -> tuple[str, ...]:
    cells = [row.heads, row.direction, str(row.world), plural(row.ring, "group")]
    for name in PLACEMENTS:
        cells += [
            format_bytes(getattr(row, f"{name}_{part}"))
            for part in ("heads_between", "kv_between", "between_busiest", "inside")
        ]
        cells.append(f"{getattr(row, f'{name}_hops_between')} of {row.hops}")
    return (
        *cells,
        *(f"{number(ratio)}×" if ratio == ratio else "" for ratio in (row.ratio, row.ratio_busiest)),
    )
