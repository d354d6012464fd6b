"""Tests of the sweep over tiles of head dim 64: every variant has a plan, and tables have every kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.band.compare import Case
from benchmarks.band.head_dims import RIVALS, VARIANTS, main, tiles_of
from benchmarks.band.tables import Record
from longca.core import Direction
from longca.masks import build_mask
from longca.ops.band import plan_band_attention
from longca.ops.band.config import BandKernel


@pytest.mark.parametrize(
    ("direction", "variant"), [(direction, name) for direction, some in VARIANTS.items() for name in some]
)
def test_every_variant_has_a_plan(direction: Direction, variant: str) -> None:
    tiles = tiles_of(variant, direction)
    mask = build_mask("causal_document", seqlen=1501, corpus="pile")
    plan = plan_band_attention(
        mask, num_q_heads=16, num_kv_heads=2, head_dim=64, device="cpu", tiles=dict(tiles)
    )
    assert plan.kernels.keys() == tiles.keys()
    for kernel, (schedule, config) in plan.kernels.items():
        asked = tiles[kernel]
        assert (config.block_m, config.block_n) == (asked.block_m, asked.block_n)
        rows = schedule.tile_m if kernel is BandKernel.DKDV else schedule.tile_n
        assert rows == (asked.block_m if kernel is BandKernel.DKDV else asked.block_n)
    assert any(tile.sm90 for tile in tiles.values()) is (variant != "portable")


def fake(wrong: str = "") -> Callable[..., list[Record]]:
    """Rates that grow from kernel to kernel; one variant has none."""

    def measure(case: Case, _: torch.device, **__: Any) -> list[Record]:
        return [
            case.record(name, reason="differs") if name == wrong else case.record(name, tflops=100.0 * place)
            for place, name in enumerate(case.kernels, 1)
        ]

    return measure


def test_tables_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--masks", "full,causal", "--lengths", "8K"]
    assert main(arguments, fake()) == 0
    said = capsys.readouterr().out
    for direction, variants in VARIANTS.items():
        table = said[said.index(f"\n{direction} ") :]
        assert all(name in table for name in (*variants, *RIVALS))
        last = len(variants)
        assert table.count(f"| {last / (last + len(RIVALS)):.2f}") >= 2
    assert main([*arguments, "--check"], fake("any order")) == 1
    said = capsys.readouterr().out
    assert "any order: differs" in said and "fa4 " not in said.partition("\nfwd ")[0]


def test_no_case_begins_after_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--max-seconds", "-1"], fake()) == 0
    assert "not begun: 8K full 64:8 fwd and what follows it" in capsys.readouterr().out
