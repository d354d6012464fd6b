"""The tables of band attention against the raster: every visible pair once, and no other."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.kernels.contract import UNIT_ROWS
from longca.masks import Mask, build_mask
from longca.masks.band import INF
from longca.masks.grid import BlockGrid
from longca.ops.band.config import (
    PORTABLE_TILES,
    SM90_DKDV,
    SM90_DQ,
    SM90_FORWARD,
    SM90_FUSED,
    BandKernel,
    choose_tiles,
)
from longca.ops.band.plan import UNIT, make_schedules, plan_band_attention, schedules_on
from longca.ops.band.tables.schedule import (
    FULL_START,
    NARROW,
    NUM_FULL,
    NUMBERS,
    PARTIAL_END,
    PARTIAL_START,
    ROW_END,
    ROW_START,
    SLOT,
    AddOrder,
    TileSchedule,
    TileSpec,
)
from longca.ops.band.torch_op import flatten, unflatten
from tests.helpers.kernels.masks_for_tests import (
    NOTHING_VISIBLE,
    PATTERNS,
    band_masks,
    complementary_masks,
    grid_masks,
    pattern_mask,
    rasters,
)
from tests.helpers.masks.strategies import quick
from tools import architecture

SIZES = [(16, 8), (8, 32), (64, 64)]
CPU = torch.device("cpu")
HOPPER = (9, 0)


def raster(schedule: TileSchedule, num_rows: int, num_cols: int, narrow_n: int = 0) -> np.ndarray:
    """The number of visits of each pair, int (groups, rows, columns), where no more than `narrow_n` columns
    are of the narrow blocks."""
    counts = np.zeros((len(schedule.work_tiles), num_rows, num_cols), dtype=int)
    ranges = schedule.block_ranges.numpy()
    shapes = schedule.partial_masks.numpy()
    for group, tiles in enumerate(schedule.work_tiles.numpy()):
        for tile in tiles:
            rows = slice(tile[ROW_START], tile[ROW_END])
            height = tile[ROW_END] - tile[ROW_START]
            assert height <= schedule.tile_m
            for column, count in ranges[tile[FULL_START] : tile[PARTIAL_START]]:
                assert count > 0 and column + count * schedule.tile_n <= num_cols
                counts[group, rows, column : column + count * schedule.tile_n] += 1
            assert ranges[tile[FULL_START] : tile[PARTIAL_START], 1].sum() == tile[NUM_FULL]
            for index in range(tile[PARTIAL_START], tile[PARTIAL_END]):
                column, shape = ranges[index]
                is_narrow = tile[NARROW] > 0 and index == tile[PARTIAL_START]
                assert not is_narrow or tile[NARROW] == shape + 1
                for row, packed in enumerate(shapes[shape, :height], tile[ROW_START]):
                    first = packed & 0xFFFF
                    behind = packed >> 16
                    assert first < behind <= schedule.tile_n or first == behind == 0
                    counts[
                        group, row, column + first : column + (min(behind, narrow_n) if is_narrow else behind)
                    ] += 1
    return counts


def check_narrow(schedule: TileSchedule, narrow_n: int) -> None:
    """A narrow block is found where there is one beside others, and its mask shows none of the columns that
    are left out."""
    ranges = schedule.block_ranges.numpy()
    ends = schedule.partial_masks.numpy() >> 16
    for tile in schedule.work_tiles.numpy().reshape(-1, 8):
        shapes = ranges[tile[PARTIAL_START] : tile[PARTIAL_END], 1]
        assert tile[NARROW] in (0, *shapes[:1] + 1)
        some = any((ends[shape] <= narrow_n).all() for shape in shapes) and len(shapes) + tile[NUM_FULL] > 1
        assert (tile[NARROW] > 0) == (narrow_n > 0 and some)
        assert tile[NARROW] == 0 or (ends[tile[NARROW] - 1] <= narrow_n).all()


def check(mask: Mask, tile: int, step: int, most: int | None = None) -> None:
    right = rasters(mask).astype(int)
    limits = {} if most is None else {"max_fraction": 0.0, "min_blocks": most}
    wanted = [
        TileSpec(tile, step, transposed, in_order=in_order, narrow_n=narrow_n, **limits)
        for transposed in (False, True)
        for in_order, narrow_n in ((False, 0), (True, 0), (False, step // 4))
    ]
    for entry, schedule in zip(wanted, make_schedules(mask, wanted, CPU), strict=True):
        num_rows, num_cols = (
            (mask.seqlen_k, mask.seqlen_q) if entry.transposed else (mask.seqlen_q, mask.seqlen_k)
        )
        drawn = raster(schedule, num_rows, num_cols, entry.narrow_n)
        np.testing.assert_array_equal(drawn, right.transpose(0, 2, 1) if entry.transposed else right)
        check_narrow(schedule, entry.narrow_n)
        if entry.in_order:
            check_waits(schedule, num_cols + step)
        else:
            check_order(schedule, num_rows, most)


def check_waits(schedule: TileSchedule, num_cols: int) -> None:
    """At each of its columns, a tile waits for the one that was there last."""
    waits, waits_of = (table.numpy() for table in (schedule.waits, schedule.wait_ranges))
    ranges = schedule.block_ranges.numpy()
    for group, tiles in enumerate(schedule.work_tiles.numpy()):
        latest = np.full(num_cols, -1)
        for number, tile in enumerate(tiles):
            touched = np.zeros(num_cols, dtype=bool)
            other = np.full(num_cols, -2)
            right = num_cols
            for index in range(tile[FULL_START], tile[PARTIAL_END]):
                column = ranges[index, 0]
                count = ranges[index, 1] if index < tile[PARTIAL_START] else 1
                touched[column : column + count * schedule.tile_n] = True
            for column, which in waits[slice(*waits_of[group, number])]:
                assert column < right
                other[column:right] = which
                right = column
            assert (other[touched] == latest[touched]).all()
            latest[touched] = number


def check_order(schedule: TileSchedule, num_rows: int, most: int | None) -> None:
    """Longest first; every row in one line; slots of a line successive."""
    for tiles, splits in zip(schedule.work_tiles.numpy(), schedule.splits.numpy(), strict=True):
        length = tiles[:, NUM_FULL] + tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START]
        tiles, length = (
            tiles[tiles[:, ROW_START] < tiles[:, ROW_END]],
            length[tiles[:, ROW_START] < tiles[:, ROW_END]],
        )
        assert (np.diff(length) <= 0).all() and (most is None or (length <= most).all())
        owned = np.zeros(num_rows, dtype=int)
        for row0, row1 in np.unique(tiles[:, [ROW_START, ROW_END]], axis=0):
            owned[row0:row1] += 1
        assert (owned == 1).all()
        slots = []
        for row0, row1, first, count in splits:
            mine = tiles[(tiles[:, SLOT] >= first) & (tiles[:, SLOT] < first + count)]
            assert (mine[:, [ROW_START, ROW_END]] == (row0, row1)).all() and sorted(mine[:, SLOT]) == list(
                range(first, first + count)
            )
            slots += range(first, first + count)
        assert slots == list(range(len(slots))) and len(slots) <= schedule.num_slots
        assert (tiles[:, SLOT] >= 0).sum() == len(slots)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.sample(2)
def test_patterns(name: str, sizes: tuple[int, int]) -> None:
    check(pattern_mask(name), *sizes)
    check(pattern_mask(name), *sizes, most=2)


@pytest.mark.parametrize("mask", NOTHING_VISIBLE, ids=str)
def test_nothing_visible(mask: Mask) -> None:
    check(mask, 16, 8)


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_no_blocks(lengths: tuple[int, int]) -> None:
    """Blocks of 4 with all of a sequence cropped away: none of no tokens, or of queries without keys."""
    blocks = Mask(8, 8, grid=BlockGrid(np.ones((2, 2, 2), dtype=bool), *[np.tile([0, 4, 8], (2, 1))] * 2))
    check(blocks.crop((0, lengths[0]), (0, lengths[1])), 16, 8)


@pytest.mark.filterwarnings("error")
def test_blocks_in_any_memory() -> None:
    """Backwards, or read only."""
    visible = np.array([[[1, 0, 1], [0, 0, 1]]], dtype=bool)
    bounds = np.array([[0, 3, 8, 9]])
    for entry in (visible[:, ::-1, ::-1], np.broadcast_to(visible, (2, 2, 3))):
        q_bounds, k_bounds = (
            np.broadcast_to(cut, (len(entry), cut.shape[1]))
            for cut in (bounds[:, [0, 1, 3]].astype(np.int32), bounds)
        )
        check(Mask(9, 9, grid=BlockGrid(entry, q_bounds, k_bounds)), 16, 8)


@quick
@given(
    band_masks(max_groups=2) | complementary_masks() | grid_masks(),
    st.sampled_from(SIZES),
    st.sampled_from([None, 1, 3]),
)
def test_random_masks(mask: Mask, sizes: tuple[int, int], most: int | None) -> None:
    check(mask, *sizes, most=most)


WANTED = st.builds(
    TileSpec,
    st.sampled_from([8, 16, 64]),
    st.sampled_from([8, 64]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([1, 3]),
    st.booleans(),
    narrow_n=st.sampled_from([0, 2, 8]),
)


@quick
@given(
    band_masks(max_groups=2) | complementary_masks() | grid_masks(), st.lists(WANTED, min_size=2, max_size=3)
)
def test_lines_do_not_depend_on_those_made_beside_them(mask: Mask, wanted: list[TileSpec]) -> None:
    for entry, beside in zip(wanted, make_schedules(mask, wanted, CPU), strict=True):
        (alone,) = make_schedules(mask, [entry], CPU)
        assert (alone.tile_m, alone.tile_n, alone.num_slots) == (
            beside.tile_m,
            beside.tile_n,
            beside.num_slots,
        )
        for mine, other in zip(alone.tables, beside.tables, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_causal_has_one_shape_and_steps_that_fit() -> None:
    (schedule,) = make_schedules(build_mask("causal", seqlen=256), [TileSpec(32, 32, transposed=False)], CPU)
    assert len(schedule.partial_masks) == 1
    tiles = schedule.work_tiles[0].numpy()
    np.testing.assert_array_equal(tiles[:, NUM_FULL], np.arange(8)[::-1])
    assert (tiles[:, PARTIAL_END] - tiles[:, PARTIAL_START] == 1).all()


@pytest.mark.parametrize(
    ("name", "params", "count"),
    [
        ("causal_sliding_window", {"window": 256}, 50),
        ("causal_sliding_window", {"window": 250}, 50),
        ("causal_sliding_window", {"window": 300}, 4),
        ("sliding_window", {"window": 256}, 40),
        ("causal", {}, 14),
    ],
    ids=str,
)
def test_narrow_blocks_of_the_forward_kernel(name: str, params: dict[str, int], count: int) -> None:
    """Row tiles of 16 queries see 15 columns more than a window has; under a causal mask every eighth ends
    with 16 columns, or 32."""
    mask = build_mask(name, seqlen=1024, **params)
    (spec,) = [TileSpec(16, 128, False, narrow_n=SM90_FORWARD.narrow_n)]
    (schedule,) = make_schedules(mask, [spec], CPU)
    np.testing.assert_array_equal(raster(schedule, 1024, 1024, spec.narrow_n), rasters(mask))
    assert (schedule.work_tiles[..., NARROW] > 0).sum() == count
    plan = plan_band_attention(
        mask, num_q_heads=8, num_kv_heads=1, head_dim=128, device=CPU, tiles=choose_tiles(128, HOPPER)
    )
    torch.testing.assert_close(
        plan.kernels[BandKernel.FORWARD][0].work_tiles, schedule.work_tiles, rtol=0, atol=0
    )
    assert all(
        (schedule.work_tiles[..., NARROW] == 0).all()
        for kernel, (schedule, _) in plan.kernels.items()
        if kernel is not BandKernel.FORWARD
    )


def test_what_makes_gradients_on_hopper() -> None:
    """Two kernels, or one for all gradients; blocks of less than its tiles keep the portable ones."""
    assert (
        choose_tiles(128, HOPPER)[BandKernel.DKDV] == SM90_DKDV
        and choose_tiles(128, HOPPER)[BandKernel.DQ] == SM90_DQ
    )
    assert (
        choose_tiles(128, HOPPER, block=128, block_rows=64)[BandKernel.DQ]
        == PORTABLE_TILES[128][BandKernel.DQ]
    )
    for order in AddOrder:
        tiles = choose_tiles(128, HOPPER, dq_order=order)
        assert tiles[BandKernel.DKDV] == replace(
            SM90_FUSED, in_order=order, stores_first=order is AddOrder.FROM_FIRST
        )
        assert BandKernel.DQ not in tiles
        short = choose_tiles(128, HOPPER, block=64, dq_order=order)
        assert all(short[use] == PORTABLE_TILES[128][use] for use in (BandKernel.DKDV, BandKernel.DQ))


def test_head_dim_64_has_hopper_kernels() -> None:
    """The same choice as for head dim 128, with its own tiles: blocks of 128 rows in one pass."""
    for how in ({}, {"dq_order": AddOrder.FROM_FIRST}, {"block": 64}, {"block": 128, "block_rows": 64}):
        tiles, as_of_128 = choose_tiles(64, HOPPER, **how), choose_tiles(128, HOPPER, **how)
        assert {use: tile.sm90 for use, tile in tiles.items()} == {
            use: tile.sm90 for use, tile in as_of_128.items()
        }
        assert all(tile == PORTABLE_TILES[64][use] for use, tile in tiles.items() if not tile.sm90)
    for order in AddOrder:
        plan = plan_band_attention(
            build_mask("causal", seqlen=1024),
            num_q_heads=8,
            num_kv_heads=1,
            head_dim=64,
            device=CPU,
            tiles=choose_tiles(64, HOPPER, dq_order=order),
        )
        schedule, config = plan.kernels[BandKernel.DKDV]
        assert (schedule.tile_m, schedule.tile_n, config.num_stages) == (128, 128, 2)


@pytest.mark.parametrize("order", [None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST])
def test_operators_of_torch_see_the_whole_plan(order: AddOrder | None) -> None:
    """They take tables and numbers, of which a plan is made again."""
    plan = plan_band_attention(
        build_mask("causal", seqlen=1024),
        num_q_heads=8,
        num_kv_heads=1,
        head_dim=128,
        device=CPU,
        tiles=choose_tiles(128, HOPPER, dq_order=order),
    )
    again = unflatten(*flatten(plan), torch.empty(1024, 8, 128), torch.empty(1024, 1, 128))
    assert any(schedule.stores_first for schedule, _ in plan.kernels.values()) is (
        order is AddOrder.FROM_FIRST
    )
    for kernel, (schedule, config) in plan.kernels.items():
        actual, found_config = again.kernels[kernel]
        assert found_config == config
        for field in fields(schedule):
            first = getattr(schedule, field.name)
            other = getattr(actual, field.name)
            assert (
                first is other
                if isinstance(first, torch.Tensor)
                else (first, type(first)) == (other, type(other))
            ), field.name


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


@quick
@given(band_masks(max_groups=2), st.sampled_from([None, AddOrder.FROM_LAST, AddOrder.FROM_FIRST]))
def test_tables_are_the_same_by_numpy_and_by_tensors(mask: Mask, order: AddOrder | None) -> None:
    """As on a GPU, and as on the host."""
    specs = [
        TileSpec(16, 64, False, narrow_n=32, max_fraction=0.3, min_blocks=1),
        TileSpec(32, 16, True, in_order=order or AddOrder.ANY, stores_first=order is AddOrder.FROM_FIRST),
        TileSpec(8, 32, False),
    ]
    for by_numpy, by_tensors in zip(
        schedules_on(mask, specs, None), schedules_on(mask, specs, CPU), strict=True
    ):
        for table, other in zip(by_numpy.tables, by_tensors.tables, strict=True):
            assert table.dtype == other.dtype and torch.equal(table, other)
        numbers, others = (
            [getattr(schedule, name) for name in NUMBERS] for schedule in (by_numpy, by_tensors)
        )
        assert numbers == others


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
