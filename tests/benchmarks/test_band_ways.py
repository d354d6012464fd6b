"""Tests of the ways to gradients that `benchmarks.band.dq_order` times: each name gives its plan."""

import math
import re
from typing import Any

import pytest
import torch

from benchmarks.band.dq_order import WAYS
from benchmarks.band.ways import FUSED, TWO_KERNELS, backward, forward, split_variant
from benchmarks.renew import PARTS
from longca.masks import build_mask
from longca.ops.band import api as band_attention
from longca.ops.band.config import BandKernel
from longca.ops.band.tables.heads import heads_per_item_of

MASKS = [
    (build_mask("causal", seqlen=4096), 64, 8),
    (build_mask("causal_document", seqlen=1501), 6, 2),
    (build_mask("sliding_window", seqlen=1003, window=70), 3, 3),
    (build_mask("causal", seqlen=1501), 8, 1),
    (build_mask("block_sparse_uniform", seqlen=2048, num_kv_heads=2, block=128), 16, 2),
    (build_mask("block_sparse_variable", seqlen=1501, num_kv_heads=6), 12, 6),
]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans of all calls, which compute nothing."""
    plans: list[Any] = []

    def remember(*args: Any) -> tuple[torch.Tensor, ...]:
        plans.append(next(arg for arg in args if isinstance(arg, band_attention.BandPlan)))
        return ()

    monkeypatch.setattr(band_attention, "band_forward", remember)
    monkeypatch.setattr(band_attention, "band_backward", remember)
    return plans


@pytest.mark.parametrize(
    "variant", [TWO_KERNELS, *FUSED, "bwd from first s1", "bwd from first k1 r2 h2 s1", "bwd two dq k2"]
)
def test_plans_of_every_variant(variant: str, plans: list[Any]) -> None:
    for mask, heads, kv_heads in MASKS:
        q = torch.empty(mask.seqlen_q, heads, 128)
        k = torch.empty(mask.seqlen_k, kv_heads, 128)
        backward(variant, q, k, k, q, q[..., 0], q, mask)()
        way, _ = split_variant(variant)
        in_one_pass = way in FUSED
        assert (BandKernel.DQ in plans[-1].kernels) is not in_one_pass
        table, tiles = plans[-1].kernels[BandKernel.DKDV]
        assert not in_one_pass or (table.wait_ranges.shape[1] > 0) is bool(FUSED[way])
        ratio = heads // kv_heads
        if variant == "bwd two dq k2":
            assert tiles.kv_heads_per_section == math.gcd(2, kv_heads)
        elif variant == "bwd from first k1 r2 h2 s1":
            per_item = math.gcd(2, ratio)
            assert (tiles.kv_heads_per_section, tiles.heads_per_item, tiles.stores_first) == (
                1,
                per_item,
                True,
            )
            assert tiles.rounds_per_section == math.gcd(2, ratio // per_item)
        elif in_one_pass:
            assert tiles.heads_per_item == math.gcd(heads_per_item_of(mask, FUSED[way], heads, 128), ratio)


def test_the_forward_plan_is_without_gradients(plans: list[Any]) -> None:
    for mask, heads, kv_heads in MASKS:
        q = torch.empty(mask.seqlen_q, heads, 128)
        k = torch.empty(mask.seqlen_k, kv_heads, 128)
        forward(q, k, k, mask)()
        assert set(plans[-1].kernels) == {BandKernel.FORWARD}


@pytest.mark.parametrize("variant", ["bwd up", "fwd", "bwd k2 up"])
def test_an_unknown_way_is_named(variant: str) -> None:
    with pytest.raises(ValueError, match=f"'{variant}' is no way to gradients: bwd two dq, bwd, "):
        split_variant(variant)


def test_ways_that_are_measured_are_known() -> None:
    commands = " ".join(part.command for part in PARTS.values())
    others = [variant for text in re.findall("--also '(.*?)'", commands) for variant in text.split(",")]
    assert len(others) > 10
    assert {split_variant(variant)[0] for variant in (*others, *(way for way, _ in WAYS.values()))} <= {
        TWO_KERNELS,
        *FUSED,
    }
