"""Plans of band attention: the kernels and tile sizes of a mask and its heads, and where tables are made."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from longca.kernels.contract import UNIT_ROWS
from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.ops.band.config import PORTABLE_TILES, BandKernel, choose_tiles
from longca.ops.band.plan import UNIT, make_schedules, plan_band_attention
from longca.ops.band.tables.schedule import ROW_END, ROW_START, AddOrder, TileSchedule, TileSpec
from tests.helpers.kernels.masks_for_tests import pattern_mask
from tools import architecture

CPU = torch.device("cpu")
HOPPER = (9, 0)


@pytest.mark.parametrize(
    ("block", "heads", "own"),
    [(2, (64, 1), False), (4, (64, 1), False), (64, (8, 8), False), (128, (8, 8), True), (16, (64, 8), True)],
    ids=str,
)
def test_dq_on_hopper_has_lines_of_128_rows(
    block: int, heads: tuple[int, int], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all sizes of query blocks and of head groups that share a tile; otherwise the portable kernel
    runs it."""
    monkeypatch.setattr(
        "longca.ops.band.plan.choose_tiles", lambda head_dim, _, **how: choose_tiles(head_dim, HOPPER, **how)
    )
    q_bounds, k_bounds = (np.arange(0, 1025, size)[None] for size in (block, 128))
    visible = np.random.default_rng(0).random((1, 1024 // block, 8)) < 0.5
    plan = plan_band_attention(
        Mask(1024, 1024, grid=BlockGrid(visible, q_bounds, k_bounds)),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        device="cpu",
    )
    _, tuned = plan.kernels[BandKernel.DQ]
    assert (tuned.sm90, tuned.block_m) == (True, 128) if own else not tuned.sm90


@pytest.mark.parametrize(("num_kv_heads", "in_turns"), [(8, True), (1, False)])
def test_few_kv_heads_have_kernels_of_their_own_for_dq(
    num_kv_heads: int, in_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "longca.ops.band.plan.choose_tiles",
        lambda head_dim, _, **how: {
            use: tiles
            for use, tiles in PORTABLE_TILES[head_dim].items()
            if use is not BandKernel.DQ or how["dq_order"] is None
        },
    )
    mask = Mask(
        16384, 16384, (np.array([[0, 16000, 0, 4000, -INF, INF], [16000, 16384, 0, 16384, -INF, INF]]),)
    )
    plan = plan_band_attention(mask, num_q_heads=8, num_kv_heads=num_kv_heads, head_dim=128, device=CPU)
    assert (BandKernel.DQ not in plan.kernels) == in_turns


def test_rows_of_a_plan_are_units_that_calls_visit() -> None:
    assert UNIT == UNIT_ROWS


@pytest.mark.parametrize(
    ("name", "heads", "split_rows"),
    [
        ("full", (64, 64), 0),
        ("causal", (64, 64), 0),
        ("sliding_window", (64, 64), 0),
        ("full", (64, 8), 0),
        ("sliding_window", (8, 8), 0),
        ("global_sliding_window", (64, 64), 0),
        ("global_sliding_window", (2, 2), 512),
    ],
)
def test_row_tiles_of_single_heads_are_split_only_where_programs_would_end_far_apart(
    name: str, heads: tuple[int, int], split_rows: int
) -> None:
    """With a query head for each KV head there are few row tiles in the heads that start together, each a
    large part of their work."""
    kernels = plan_band_attention(
        build_mask(name, seqlen="8K"),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        device=CPU,
        tiles=choose_tiles(128, HOPPER),
    ).kernels
    for kernel in (BandKernel.FORWARD, BandKernel.DQ):
        splits = kernels[kernel][0].splits[0]
        assert int((splits[:, 1] - splits[:, 0]).sum()) == split_rows, kernel


@pytest.mark.parametrize(("num_kv_heads", "at_once"), [(8, 8), (64, 16), (24, 12), (7, 7), (17, 1), (3, 3)])
def test_few_kv_heads_start_together_in_a_kernel_for_dk_and_dv(num_kv_heads: int, at_once: int) -> None:
    tiles = plan_band_attention(
        build_mask("sliding_window", seqlen="1K"),
        num_q_heads=num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        device=CPU,
        tiles=choose_tiles(128, HOPPER),
    ).kernels[BandKernel.DKDV][1]
    assert tiles.kv_heads_per_section == at_once


def test_blocks_of_uneven_size_have_short_lines() -> None:
    """Few of the rows that a line has room for are in vain, by heads that share it."""
    mask = build_mask("block_sparse_variable", seqlen=4096, mean_block=128, density=0.5, seed=2)
    schedule, tuned = plan_band_attention(
        mask, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU
    ).kernels[BandKernel.FORWARD]
    assert schedule.tile_m * 4 == tuned.block_m == 128
    assert (
        schedule.work_tiles[0, :, ROW_END] - schedule.work_tiles[0, :, ROW_START]
    ).float().mean() > 0.8 * schedule.tile_m
    even = build_mask("block_sparse_uniform", seqlen=4096, block=128, density=0.5)
    schedule, tuned = plan_band_attention(
        even, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU
    ).kernels[BandKernel.FORWARD]
    assert schedule.tile_m == tuned.block_m == 128


@pytest.mark.parametrize("name", ["causal_document", "block_sparse_uniform", "block_sparse_variable"])
@pytest.mark.parametrize("on_host", [True, False])
def test_tables_of_short_masks_are_made_on_the_host(
    name: str, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device "meta" computes nothing: it cannot be what made the tables, only where they went."""
    mask = pattern_mask(name)
    size = mask.seqlen_q if mask.grid is None else mask.grid.visible.size
    monkeypatch.setattr("longca.ops.band.plan.HOST_TOKENS", size if on_host else size - 1)
    made_on: list[str] = []

    def made(mask: Mask, specs: list[TileSpec], device: torch.device) -> list[TileSchedule]:
        made_on.append(device.type)
        return make_schedules(mask, specs, CPU)

    monkeypatch.setattr("longca.ops.band.plan.make_schedules", made)
    there, here = (
        plan_band_attention(mask, num_q_heads=8, num_kv_heads=8, head_dim=128, device=device)
        for device in ("meta", "cpu")
    )
    assert made_on == ["cpu" if on_host else "meta", "cpu"] and there.device.type == "meta"
    assert [table.shape for table in there.tables] == [table.shape for table in here.tables]
    assert all(table.device.type == "meta" and table.dtype == torch.int32 for table in there.tables)
    assert len(set(map(id, there.tables))) == len(set(map(id, here.tables))), (
        "what tables share is copied once"
    )


def test_plans_are_made_without_triton() -> None:
    """Nothing that a plan imports imports it at the top, so that plans are made on machines that have
    none."""
    actual = set()
    new = {"ops.band.plan"}
    while new:
        actual |= new
        new = {other for module in new for other in architecture.imported_modules(module)} - actual
    heavy = {
        name
        for name in actual
        for entry in architecture.imports(architecture.modules()[name])
        if entry.at_import and entry.name.partition(".")[0] == "triton"
    }
    assert "ops.band.replay.launches" in actual and heavy == set()


@pytest.mark.parametrize("tiles", ["portable", None, *AddOrder])
def test_sums_of_a_head_do_not_depend_on_the_heads_of_its_call(tiles: AddOrder | str | None) -> None:
    """With `planned_kv_heads`, tables of all kernels are those of the larger call; without, some differ."""
    chosen = None if tiles == "portable" else choose_tiles(128, HOPPER, dq_order=tiles)
    masks = [build_mask("sliding_window", seqlen=8192, window=512), build_mask("causal", seqlen=4096)]

    def sums(mask: Mask, num_kv_heads: int, planned: int | None) -> list[object]:
        plan = plan_band_attention(
            mask,
            num_q_heads=4 * num_kv_heads,
            num_kv_heads=num_kv_heads,
            head_dim=128,
            device=CPU,
            tiles=chosen,
            planned_kv_heads=planned,
        )
        return [
            (
                kernel,
                replace(config, kv_heads_per_section=0, rounds_per_section=0),
                [table.tolist() for table in schedule.tables],
            )
            for kernel, (schedule, config) in plan.kernels.items()
        ]

    expected = [sums(mask, 8, None) for mask in masks]
    assert all([sums(mask, heads, 8) for mask in masks] == expected for heads in (1, 2, 3))
    assert [sums(mask, 1, None) for mask in masks] != expected
