"""Bytes of USP between nodes and inside them, with its groups as released and as they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core.call import CallSpec
from longca.cp.partition.mesh import head_groups
from longca.cp.partition.sharding import contiguous
from longca.cp.schedule.pair_traffic import PairTraffic, leaves_node, swapped
from longca.cp.schedule.ring_and_gather import Ring
from longca.lab.paper.analysis.select import GQA, MHA
from longca.lab.store.text import number
from longca.masks import build_mask

if TYPE_CHECKING:
    import pandas as pd

WORLDS = (8, 16, 24, 32, 48, 64, 96)
TOKENS = 8192  # of a rank
HEAD_RANKS = 8  # of a head group
HEAD_DIM = 128
PLACEMENTS = ("released", "right")


def usp_bytes() -> pd.DataFrame:
    """A row for each number of ranks, heads and pass: bytes that a rank sends in one call with both
    placements, under a full mask.

    Columns `released_…` and `right_…`: `heads_between` and `kv_between` nodes, `between` in all, each the
    mean over ranks;
    `between_busiest` of the rank that sends most; `inside` a node; `hops_between`, of the rank with most.
    `ratio` and `ratio_busiest` are released over right, NA where neither sends between nodes.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            _row(world, heads, direction)
            for heads in (GQA, MHA)
            for direction in ("fwd", "bwd")
            for world in WORLDS
        ]
    )


def _row(world: int, heads: tuple[int, int], direction: Any) -> dict[str, Any]:
    """Bytes of a rank with both placements."""
    mesh = head_groups(world, heads[1], HEAD_RANKS)
    plan = Ring().plan(build_mask("full", seqlen=world * TOKENS), contiguous(world * TOKENS, mesh.ring))
    right = PairTraffic.of(mesh, plan, CallSpec(*heads, HEAD_DIM, "bf16", direction))
    between, row = (
        leaves_node(world),
        {"heads": f"{heads[0]}:{heads[1]}", "direction": direction, "world": world, "ring": mesh.ring},
    )
    for name, traffic in zip(PLACEMENTS, (right.placed(swapped(mesh)), right), strict=True):
        both = traffic.heads + traffic.kv
        sent = (both * between).sum(axis=1)
        row |= {
            f"{name}_heads_between": float((traffic.heads * between).sum() / world),
            f"{name}_kv_between": float((traffic.kv * between).sum() / world),
            f"{name}_between": float(sent.mean()),
            f"{name}_between_busiest": int(sent.max()),
            f"{name}_inside": float((both * ~between).sum() / world),
            f"{name}_hops_between": int((traffic.kv_hops * between).sum(axis=1).max()),
            "hops": int(traffic.kv_hops.sum(axis=1).max()),
        }
    for end in ("", "_busiest"):
        row[f"ratio{end}"] = (
            row[f"released_between{end}"] / row[f"right_between{end}"] if row[f"right_between{end}"] else None
        )
    return row


def forward(data: pd.DataFrame) -> pd.DataFrame:
    return data.loc[(data.direction == "fwd") & data.ratio.notna()]


def finding(data: pd.DataFrame) -> str:
    """The ratio of bytes between nodes, with the groups as released over ours, for each choice of heads."""
    return "With the groups as released, USP sends between nodes, forward, " + "; ".join(
        _sentence(of_heads, heads) for heads, of_heads in forward(data).groupby("heads", sort=False)
    )


def _sentence(rows: pd.DataFrame, heads: object) -> str:
    """ "1.1 to 4.5 times as many bytes at 16 to 96 ranks with 64:8 heads (of the busiest rank 1.1 to
    4.5)"."""
    ranks = f"{rows.world.min()} to {rows.world.max()} ranks"
    return (
        f"{span(rows.ratio, number)} times the bytes at {ranks} with {heads} heads "
        f"({span(rows.ratio_busiest, number)} of the "
        "busiest rank)"
    )


def span(values: pd.Series, text: Any) -> str:
    low, high = text(float(values.min())), text(float(values.max()))
    return low if low == high else f"{low} to {high}"
