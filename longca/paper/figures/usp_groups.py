"""Bytes that USP sends between nodes and inside them, with its groups as released and as they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core.cell import CallSpec
from longca.cp.partition.load_balance import contiguous
from longca.cp.partition.mesh import RANKS_PER_NODE, head_groups
from longca.cp.schedule.pair_traffic import PairTraffic, leaves_node, swapped
from longca.cp.schedule.ring import Ring
from longca.masks import build_mask
from longca.paper.contract import Cells, PaperTable
from longca.paper.select import GQA, MHA
from longca.store.text import format_bytes, number, plural

if TYPE_CHECKING:
    import pandas as pd

WORLDS = (8, 16, 24, 32, 48, 64, 96)
TOKENS = 8192  # of a rank
HEAD_RANKS = 8  # of a head group
HEAD_DIM = 128
PLACEMENTS = ("released", "right")


class UspGroups(PaperTable):
    label = "Groups of USP"
    section, number, order = "released", "defect F12", 30
    needs_records = False
    caption = (f"Bytes that a rank sends in one call under a full mask, {TOKENS // 1024}K tokens a rank, bf16, head dim {HEAD_DIM}, "
               f"{HEAD_RANKS} ranks a head group, {RANKS_PER_NODE} GPUs a node; counted from the plans that this project runs: the mean "
               "over ranks, and the busiest rank. Released: neighbours form rings, and ranks of a head group are far apart. Right: "
               "neighbours divide heads. Hops are steps in which a rank sends KV to another node, of all its steps. KV travel beside "
               "kernels; the released all-to-alls come before and after all kernels, so that nothing hides them.")

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame([_row(world, heads, direction) for heads in (GQA, MHA) for direction in ("fwd", "bwd") for world in WORLDS])

    def title(self, data: pd.DataFrame) -> str:
        return "With the groups as released, USP sends between nodes, forward, " + "; ".join(
            _sentence(of_heads, heads) for heads, of_heads in _forward(data).groupby("heads", sort=False))

    def effects(self, data: pd.DataFrame) -> dict[int, str]:
        rows = _forward(data)
        exposed = rows[rows.released_heads_between > 0]
        return {12: f"{self.title(data)}. All-to-alls, which nothing hides, send {_span(exposed.released_heads_between, format_bytes)} of "
                    f"these for each rank, and {_span(exposed.right_heads_between, format_bytes)} with groups as they should be"}

    def cells(self, data: pd.DataFrame) -> Cells:
        header = ["heads", "pass", "ranks", "ring"]
        for words in ("released", "right"):
            header += [f"{words}: all-to-all between nodes", "KV between nodes", "busiest rank", "inside a node", "hops between nodes"]
        return Cells((*header, "released over right", "of the busiest"), tuple(_cells(row) for row in data.itertuples()), num_keys=4)


def _row(world: int, heads: tuple[int, int], direction: Any) -> dict[str, Any]:
    """Bytes of a rank with both placements."""
    mesh = head_groups(world, heads[1], HEAD_RANKS)
    plan = Ring().plan(build_mask("full", seqlen=world * TOKENS), contiguous(world * TOKENS, mesh.ring))
    right = PairTraffic.of(mesh, plan, CallSpec(*heads, HEAD_DIM, "bf16", direction))
    between, row = leaves_node(world), {"heads": f"{heads[0]}:{heads[1]}", "direction": direction, "world": world, "ring": mesh.ring}
    for name, traffic in zip(PLACEMENTS, (right.placed(swapped(mesh)), right), strict=True):
        both = traffic.heads + traffic.kv
        sent = (both * between).sum(axis=1)
        row |= {f"{name}_heads_between": float((traffic.heads * between).sum() / world),
                f"{name}_kv_between": float((traffic.kv * between).sum() / world),
                f"{name}_between": float(sent.mean()), f"{name}_between_busiest": int(sent.max()),
                f"{name}_inside": float((both * ~between).sum() / world),
                f"{name}_hops_between": int((traffic.kv_hops * between).sum(axis=1).max()), "hops": int(traffic.kv_hops.sum(axis=1).max())}
    for end in ("", "_busiest"):
        row[f"ratio{end}"] = row[f"released_between{end}"] / row[f"right_between{end}"] if row[f"right_between{end}"] else None
    return row


def _forward(data: pd.DataFrame) -> pd.DataFrame:
    return data.loc[(data.direction == "fwd") & data.ratio.notna()]


def _sentence(rows: pd.DataFrame, heads: object) -> str:
    """"1.1 to 4.5 times as many bytes at 16 to 96 ranks with 64:8 heads (of the busiest rank 1.1 to 4.5)"."""
    ranks = f"{rows.world.min()} to {rows.world.max()} ranks"
    return (f"{_span(rows.ratio, number)} times the bytes at {ranks} with {heads} heads ({_span(rows.ratio_busiest, number)} of the "
            "busiest rank)")


def _span(values: pd.Series, text: Any) -> str:
    low, high = text(float(values.min())), text(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _cells(row: Any) -> tuple[str, ...]:
    found = [row.heads, row.direction, str(row.world), plural(row.ring, "group")]
    for name in PLACEMENTS:
        found += [format_bytes(getattr(row, f"{name}_{part}")) for part in ("heads_between", "kv_between", "between_busiest", "inside")]
        found.append(f"{getattr(row, f'{name}_hops_between')} of {row.hops}")
    return (*found, *(f"{number(ratio)}×" if ratio == ratio else "" for ratio in (row.ratio, row.ratio_busiest)))
