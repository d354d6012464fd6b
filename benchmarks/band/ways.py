"""The deterministic ways to the gradients of band attention on Hopper, each as a call that can be timed.

A variant is a way, "bwd two dq" (dK and dV by one kernel, dQ by another) or one of `FUSED` (all gradients in
one pass), and the fields that it sets: " k2 r4 h2 s1" at its end stands for 2 KV heads at once, 4 items of
each work tile at once, 2 query heads an item, and first addends stored.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from longca.masks import Mask
from longca.ops.band import AddOrder

TWO_KERNELS = "bwd two dq"
FUSED = {"bwd": AddOrder.ANY, "bwd from last": AddOrder.FROM_LAST, "bwd from first": AddOrder.FROM_FIRST}
FIELDS = {"k": "kv_heads_per_section", "r": "rounds_per_section", "h": "heads_per_item", "s": "stores_first"}

Call = Callable[[], tuple[torch.Tensor, ...]]


def inputs(num_q: int, num_k: int, heads: int, kv_heads: int, head_dim: int = 128) -> list[torch.Tensor]:
    """Returns q, k, v and dout of standard normal values, (tokens, heads, head dim) in bf16."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = (num_q, heads), (num_k, kv_heads), (num_k, kv_heads), (num_q, heads)
    return [torch.randn(*shape, head_dim, device=device, dtype=torch.bfloat16) for shape in shapes]


def split_variant(variant: str) -> tuple[str, dict[str, Any]]:
    """Splits "bwd from first k1 s1" into its way and the fields of `TileConfig` that it sets.

    Raises:
        ValueError: there is no such way.
    """
    way = re.sub(r" [krhs]\d+\b", "", variant)
    if way not in (TWO_KERNELS, *FUSED):
        raise ValueError(
            f"{variant!r} is no way to gradients: {', '.join((TWO_KERNELS, *FUSED))}, each with k, r, h or s"
        )
    return way, {FIELDS[letter]: int(number) for letter, number in re.findall(r" ([krhs])(\d+)\b", variant)}


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask) -> Call:
    """Returns a call of the Hopper kernel that computes (out, LSE)."""
    from longca.ops.band import band_forward, plan_band_attention
    from longca.ops.band.config import PORTABLE_TILES, SM90_TILES, BandKernel
    from longca.ops.band.plan import mean_block

    short = (mean_block(mask, keys=True) or 128) % 128 != 0
    hopper = SM90_TILES[q.shape[2]]
    tiles = PORTABLE_TILES[q.shape[2]] | {
        BandKernel.FORWARD: hopper.forward_short_blocks if short else hopper.forward
    }
    plan = plan_band_attention(
        mask,
        num_q_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[2],
        device=q.device,
        needs_backward=False,
        tiles=tiles,
    )
    return lambda: band_forward(q, k, v, plan)


def backward(variant: str, q, k, v, out, lse, dout, mask: Mask) -> Call:
    """Returns a call that computes (dq, dk, dv) in the variant's way."""
    from longca.ops.band import band_backward, plan_band_attention
    from longca.ops.band.config import PORTABLE_TILES, SM90_TILES, BandKernel

    way, fields = split_variant(variant)
    head_dim = q.shape[2]
    tiles = dict(PORTABLE_TILES[head_dim])
    hopper = SM90_TILES[head_dim]
    if way == TWO_KERNELS:
        tiles |= {BandKernel.DKDV: replace(hopper.dkdv, **fields), BandKernel.DQ: hopper.dq}
    else:
        tiles[BandKernel.DKDV] = replace(hopper.fused, in_order=FUSED[way], **fields)
        del tiles[BandKernel.DQ]
    plan = plan_band_attention(
        mask, num_q_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=head_dim, device=q.device, tiles=tiles
    )
    return lambda: band_backward(q, k, v, out, lse, dout, plan)
