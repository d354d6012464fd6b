"""The Hopper kernels of band attention on a CPU, against the definition. The order of what happens is drawn
from seeds.

python -m tests.ops.gluon tests.ops.hopper_emulated few|whole FIRST_SEED SEEDS [HEAD_DIM]
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.ops.band import config, plan
from longca.ops.band.api import BandPlan, band_backward, band_forward, plan_band_attention
from longca.ops.band.config import BandKernel
from longca.ops.band.replay.launches import Launches
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.schedule import NARROW, SLOT, TileSpec
from tests.helpers.kernels.plain_attention import plain_attention
from tests.helpers.kernels.random_bands import random_bands
from tests.helpers.ops.interpreted import let_loops_run
from tests.ops.gluon.language import settings

HEAD_DIM = ContextVar("head dim of all inputs", default=128)
DOCUMENTS = np.array([131, 1, 70, 96])
WAYS = {
    "two kernels": None,
    "from the last": AddOrder.FROM_LAST,
    "from the first": AddOrder.FROM_FIRST,
    "any order": AddOrder.ANY,
}
TOLERANCE = 4e-3  # fp16: the kernels round P, dS and the results
FEW = {
    "causal_document": ("from the first",),
    "causal": ("from the last",),
    "causal_sliding_window": ("two kernels",),
    "block_sparse_uniform": (),
}


def masks() -> dict[str, Mask]:
    """Full, partial and empty tiles, rows without keys, rows much longer than others, lengths that are no
    multiples of anything."""
    holes = as_bands([(7, 140, 0, 160, -INF, 3), (164, 290, 30, 233, -10, INF)])
    return {
        "full": build_mask("full", seqlen=257),
        "causal": build_mask("causal", seqlen=298),
        "causal_document": build_mask("causal_document", seqlen=298, documents=DOCUMENTS),
        "full_document": build_mask("full_document", seqlen=298, documents=DOCUMENTS),
        "sliding_window": build_mask("sliding_window", seqlen=298, window=70),
        "causal_sliding_window": build_mask("causal_sliding_window", seqlen=298, window=33),
        "global_sliding_window": build_mask("global_sliding_window", seqlen=700, num_global=5, window=40),
        "shared_question": build_mask("shared_question", seqlen=298, documents=DOCUMENTS),
        "holes": Mask(298, 233, (holes,), name="holes"),
        "block_sparse_uniform": build_mask("block_sparse_uniform", seqlen=512, block=64, density=0.4, seed=1),
        "blocks_of_128": build_mask("block_sparse_uniform", seqlen=512, block=128, density=0.5, seed=2),
        "block_sparse_variable": build_mask(
            "block_sparse_variable", seqlen=400, mean_block=128, density=0.5, seed=1
        ),
    }


Tiles = Mapping[BandKernel, config.TileConfig]


def plan_of(
    mask: Mask, heads: tuple[int, int], way: str, others: Tiles | None = None, **fused: Any
) -> BandPlan:
    """The plan of a GPU of compute capability 9.0, with three multiprocessors; with the other tiles and
    fields of the fused kernel's that are given."""
    head_dim = HEAD_DIM.get()
    tiles: dict[BandKernel, config.TileConfig] = config.choose_tiles(
        head_dim, (9, 0), block=plan.mean_block(mask, keys=True), block_rows=1024, dq_order=WAYS[way]
    )
    tiles |= others or {}
    if tiles[BandKernel.DKDV].fused:
        tiles[BandKernel.DKDV] = replace(tiles[BandKernel.DKDV], **fused)
    return plan_band_attention(
        mask, num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, device="cpu", tiles=tiles
    )


def inputs(mask: Mask, heads: tuple[int, int], seed: int) -> list[torch.Tensor]:
    """q, k, v, dout."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (mask.seqlen_q, heads[0]),
        (mask.seqlen_k, heads[1]),
        (mask.seqlen_k, heads[1]),
        (mask.seqlen_q, heads[0]),
    ]
    return [torch.randn(*shape, HEAD_DIM.get(), generator=generator).half() for shape in shapes]


def near(what: str, result: torch.Tensor, right: torch.Tensor) -> None:
    error = torch.linalg.vector_norm(result.double() - right) / max(
        float(torch.linalg.vector_norm(right)), 1.0
    )
    assert error <= TOLERANCE, f"{what} is off by {error:.1e}"


def check(
    name: str,
    mask: Mask,
    heads: tuple[int, int],
    way: str | None,
    seed: int,
    others: Tiles | None = None,
    **fused: Any,
) -> None:
    """The forward pass, and with a way the backward pass in it."""
    print(name, heads, way or "forward", "seed", seed, flush=True)
    settings["seed"] = seed
    made = plan_of(mask, heads, way or "two kernels", others, **fused)
    q, k, v, dout = inputs(mask, heads, seed)
    plain = plain_attention(q, k, v, dout, mask.dense())
    out, lse = band_forward(q, k, v, made)
    empty = plain.lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty) and (out[empty] == 0).all(), "rows without keys"
    near("LSE", lse[~empty], plain.lse[~empty])
    near("out", out, plain.out)
    if way:
        for grad, result, right in zip(
            ("dq", "dk", "dv"), band_backward(q, k, v, out, lse, dout, made), plain.grads, strict=True
        ):
            near(grad, result, right)


def narrow_masks() -> list[tuple[Mask, tuple[int, int]]]:
    """Masks that leave the last blocks of some row tiles nearly empty, with heads for them."""
    windows = [
        ("causal_sliding_window", 268, (8, 1)),
        ("sliding_window", 133, (8, 2)),
        ("causal_sliding_window", 205, (4, 2)),
        ("causal_sliding_window", 160, (2, 2)),
    ]
    return [
        *((build_mask(name, seqlen=410, window=window), heads) for name, window, heads in windows),
        (build_mask("causal", seqlen=410), (8, 1)),
        (build_mask("block_sparse_variable", seqlen=410, mean_block=128, density=0.7, seed=11), (8, 1)),
    ]


def check_narrow(seed: int, some: str) -> None:
    """Work tiles with a narrow block and without one, whole and split; of few cases each mask is one of the
    two."""

    forward = {BandKernel.FORWARD: config.SM90_TILES[HEAD_DIM.get()].forward}

    def of_two_blocks(tile_m: int, tile_n: int, transposed: bool, _: float, **others: Any) -> TileSpec:
        return TileSpec(tile_m, tile_n, transposed, 0.0, 2, **others)

    def work_tiles_of(mask: Mask, heads: tuple[int, int]) -> torch.Tensor:
        return plan_of(mask, heads, "two kernels", forward).kernels[BandKernel.FORWARD][0].work_tiles[0]

    for number, (mask, heads) in enumerate(narrow_masks()):
        work_tiles = work_tiles_of(mask, heads)
        assert 0 < (work_tiles[:, NARROW] > 0).sum() < len(work_tiles)
        if some == "whole" or (number + seed) % 2:
            check(f"narrow blocks, {mask.name}", mask, heads, None, seed, forward)
        with patch.object(plan, "TileSpec", of_two_blocks):
            work_tiles = work_tiles_of(mask, heads)
            assert ((work_tiles[:, SLOT] >= 0) & (work_tiles[:, NARROW] > 0)).any()
            if some == "whole" or (number + seed) % 2 == 0:
                check(f"narrow blocks, {mask.name}, split", mask, heads, None, seed, forward)


def check_merged(seed: int) -> None:
    """A float32 result over other keys goes in, and one over all keys comes out."""
    print("merged", "seed", seed, flush=True)
    settings["seed"] = seed
    whole = build_mask("causal", seqlen=298)
    q, k, v, dout = inputs(whole, (8, 1), seed)
    result = None
    for first, last in ((0, 100), (100, 298)):
        part = Mask(298, 298, (as_bands([(0, 298, first, last, -INF, 0)]),), name="part")
        made = plan_of(part, (8, 1), "two kernels")
        result = band_forward(q, k, v, made, initial=result, out_dtype=torch.float32)
    assert (made.kernels[BandKernel.FORWARD][0].work_tiles[..., NARROW] > 0).any()
    plain = plain_attention(q, k, v, dout, whole.dense())
    near("merged out", result[0], plain.out)
    near("merged LSE", result[1], plain.lse)


def chosen(some: str, number: int, masks: Sequence[Any], shapes: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs of a mask and a shape: all of them, or as few as have each mask and each shape. `number` says
    which few."""
    if some == "whole":
        return list(itertools.product(masks, shapes))
    return [(mask, shapes[(number + index) % len(shapes)]) for index, mask in enumerate(masks)]


def check_heads_of_items(seed: int, some: str) -> None:
    """Items of two heads that are all of a KV head, and that are half of them."""
    named = (("causal_document", "from the first"), ("causal", "from the last"), ("holes", "any order"))
    for (name, way), heads in chosen(some, seed, named, ((4, 2), (4, 1))):
        made = plan_of(masks()[name], heads, way, heads_per_item=2).kernels[BandKernel.DKDV][1]
        assert made.fused and made.heads_per_item == 2
        check(f"two heads an item, {name}", masks()[name], heads, way, seed, heads_per_item=2)


def check_rounds_at_once(seed: int, some: str) -> None:
    """Items of a work tile that start together, each for one query head or for two, of one KV head or of
    two."""
    named = (("causal_document", "from the first"), ("causal", "from the last"), ("holes", "any order"))
    shapes = (((4, 1), 1, 1), ((8, 1), 2, 1), ((8, 2), 1, 2))
    for (name, way), (heads, heads_per_item, kv_heads) in chosen(some, seed, named, shapes):
        fused = {"heads_per_item": heads_per_item, "kv_heads_per_section": kv_heads, "rounds_per_section": 2}
        assert plan_of(masks()[name], heads, way, **fused).kernels[BandKernel.DKDV][1].rounds_per_section == 2
        check(f"two items of a work tile at once, {name}", masks()[name], heads, way, seed, **fused)


def anything(self: Launches, *shape: int) -> torch.Tensor:
    """Memory as it was left by somebody."""
    return torch.full(shape, torch.nan)


def check_stores(seed: int, some: str) -> None:
    """Gradients whose first addends are stored, in memory of anything; with an item without blocks."""
    block = config.SM90_TILES[HEAD_DIM.get()].fused.block_n  # blocks begin at multiples of their length
    unseen = Mask(
        298,
        298,
        (as_bands([(0, 298, 0, 120, -INF, INF), (block, 298, 256, 298, -INF, INF)]),),
        name="keys that nobody sees",
    )
    window = build_mask("sliding_window", seqlen=298, window=block)
    last = "from the last"
    first = "from the first"
    ways = ((masks()["causal"], last), (window, first), (unseen, first), (unseen, last))
    for (mask, way), heads_per_item in chosen(some, seed, ways, (1, 2)):
        fused = {"stores_first": True, "heads_per_item": heads_per_item}
        assert plan_of(mask, (4, 1), way, **fused).kernels[BandKernel.DKDV][0].stores_first
        with patch.object(Launches, "empty", anything):
            check(f"first addends stored, {mask.name}", mask, (4, 1), way, seed, **fused)


def check_rising(seed: int) -> None:
    """Scores that rise from tile to tile, or do not: results are rescaled in some tiles, and not in
    others."""
    print("rising scores", "seed", seed, flush=True)
    settings["seed"] = seed
    mask = build_mask("full", seqlen=640)
    made = plan_of(mask, (2, 2), "two kernels")
    q, k, v, dout = inputs(mask, (2, 2), seed)
    for steepness in (0.5, 2.0, 6.0):
        rising = k * torch.linspace(0.1, steepness, 640).half()[:, None, None]
        plain = plain_attention(q, rising, v, dout, mask.dense())
        out, lse = band_forward(q, rising, v, made)
        near("LSE of rising scores", lse, plain.lse)
        near("out of rising scores", out, plain.out)


OTHER_TILES = {
    "three consumer groups": {BandKernel.FORWARD: config.TileConfig(192, 128, 4, 2, sm90=True, narrow_n=32)},
    "short blocks": {
        BandKernel.DKDV: config.TileConfig(128, 64, 4, 3, sm90=True),
        BandKernel.DQ: config.TileConfig(128, 64, 4, 2, sm90=True),
    },
    "long blocks": {
        BandKernel.DKDV: config.TileConfig(128, 128, 4, 3, sm90=True),
        BandKernel.DQ: config.TileConfig(128, 128, 4, 3, sm90=True),
    },
}


def check_other_tiles(seed: int) -> None:
    """Tiles of head dim 64 that are not chosen, or not always; row tiles are whole and split."""
    some = (("global_sliding_window", (8, 1)), ("causal_document", (4, 2)), ("holes", (2, 2)))
    for tiles, (name, heads) in itertools.product(OTHER_TILES, some):
        check(f"{tiles}, {name}", masks()[name], heads, "two kernels", seed, OTHER_TILES[tiles])


def check_random(seed: int) -> None:
    """Random bands in each way, with two and with one KV head."""
    for number, way in enumerate(WAYS):
        mask = random_bands(seed * len(WAYS) + number, 290 + 31 * number, 330 - 45 * number, 3)
        check(mask.name, mask, (4, 2) if number % 2 else (2, 1), way, seed)


def main(some: str, first: int, count: int, head_dim: int = 128) -> None:
    HEAD_DIM.set(head_dim)
    torch.cuda.get_device_properties = lambda device: type("Properties", (), {"multi_processor_count": 3})()
    plan.RESIDENT_PROGRAMS = 8  # so that long row tiles are split
    let_loops_run()  # of the kernel that combines splits
    for seed in range(first, first + count):
        check_rising(seed)
        check_narrow(seed, some)
        check_merged(seed)
        check_heads_of_items(seed, some)
        check_rounds_at_once(seed, some)
        check_stores(seed, some)
        if head_dim == 64:
            check_other_tiles(seed)
            check_random(seed)
        for name, mask in masks().items():
            if some == "few" and name not in FEW:
                continue
            for heads in ((2, 2), (8, 1)) if some == "whole" else ((8, 1),) if not FEW[name] else ():
                check(name, mask, heads, None, seed)
            # backward, short blocks have Triton's own kernels
            for way in FEW[name] if some == "few" else WAYS if name != "block_sparse_uniform" else ():
                check(name, mask, (4, 2), way, seed)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
