"""The plan of band attention: a mask as a `TileSchedule` for each kernel, built once and cached with the
mask."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from longca.masks import Mask
from longca.ops.band.config import SM90_DQ, BandKernel, TileConfig, choose_tiles, has_hopper_kernels
from longca.ops.band.replay.launches import Calls
from longca.ops.band.tables.arrays import host_view, padded_groups, positions_in
from longca.ops.band.tables.backward_rule import AddOrder
from longca.ops.band.tables.backward_way import BackwardWay, chosen_way
from longca.ops.band.tables.dq_order import may_store_first, with_waits
from longca.ops.band.tables.heads import (
    KV_HEADS_AT_ONCE,
    LATE,
    RESIDENT_PROGRAMS,
    even_part,
    heads_at_once,
    heads_per_item_of,
    heads_that_fit,
    pack_size,
)
from longca.ops.band.tables.kv_blocks import blocks_of_grid, cut_intervals
from longca.ops.band.tables.partial_masks import masks_of
from longca.ops.band.tables.row_tiles import intervals_of, row_tiles_of
from longca.ops.band.tables.schedule import ROW_END, ROW_START, TileSchedule, TileSpec
from longca.ops.band.tables.work_tiles import schedules_of
from longca.ops.transfer import on_device

# least row tiles of a block of queries if blocks differ in size, so that the last, partly empty one is short
TILES_OF_UNEVEN_BLOCK = 4
UNIT = 128  # rows: row tiles are at most this long, and begin at multiples of their length
# a program of the Hopper kernels over queries has a warp group for so many rows; two fill a multiprocessor
WARP_GROUP_ROWS = 64
# up to this many tokens, or cells of a block grid, the host builds tables: GPU operations would take longer
# to launch
HOST_TOKENS = 1 << 15

Kernels = Mapping[BandKernel, tuple[TileSchedule, TileConfig]]


@dataclass(frozen=True, eq=False)
class BandPlan:
    """The tables of a mask for the kernels, on one device, for one number of heads and one head dim. A plan
    is reusable and immutable except for its recorded calls.

    It does not refer to the mask, which may cache it, so the tables are freed as soon as both are unused.
    """

    seqlen_q: int
    seqlen_k: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    device: torch.device
    kernels: Kernels
    units: Tensor | None = None
    """the first row of each unit of queries, if it is for some of them alone, (N,) int32"""
    made_on_host: Kernels | None = field(default=None, repr=False)
    """the tables in host memory, if they were built there: other tables can be derived without waiting for
    the device"""
    calls: Calls = field(default_factory=Calls, init=False, repr=False)

    @property
    def tables(self) -> list[Tensor]:
        """All tables that kernels read."""
        units = [] if self.units is None else [self.units]
        return [table for schedule, _ in self.kernels.values() for table in schedule.tables] + units

    @property
    def num_bytes(self) -> int:
        """Size of all tables."""
        return bytes_of([self])


class DqTarget(NamedTuple):
    """A target of dQ: the queries, the destination, and the initial value."""

    plan: BandPlan
    """of these queries"""
    dq: Tensor
    initial: Tensor | None = None
    """float32, strided as `dq`, and possibly `dq` itself: the rows are added to it"""

    def keep_initial(self) -> None:
        """Writes dQ for a call without keys: the initial value, or 0."""
        tokens = torch.arange(len(self.dq), device=self.dq.device)
        if self.plan.units is not None:
            tokens = tokens[torch.isin(tokens // UNIT, self.plan.units // UNIT)]
        self.dq[tokens] = 0 if self.initial is None else self.initial[tokens].to(self.dq.dtype)


def bytes_of(plans: Sequence[BandPlan]) -> int:
    """Size of all tables of several plans; a shared table counts once."""
    tables = {
        table.data_ptr(): table
        for plan in plans
        for schedule, _ in plan.kernels.values()
        for table in schedule.tables
    }
    return sum(table.numel() * table.element_size() for table in tables.values())


@torch.inference_mode(False)  # tables created in inference mode could not be saved for a backward pass
def plan_band_attention(
    mask: Mask,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device | str,
    needs_backward: bool = True,
    deterministic: bool = True,
    tiles: dict[BandKernel, TileConfig] | None = None,
    planned_kv_heads: int | None = None,
) -> BandPlan:
    """Makes the plan of a mask.

    Args:
        needs_backward: if False, the plan covers only the forward pass and is smaller.
        deterministic: gradients are bit-identical in every run. If False, they are accumulated in any order:
            faster under some masks, slower under others (docs/results/h100/band.md).
        tiles: overrides the kernels' tile sizes.
        planned_kv_heads: KV heads of a larger call of which this one has some. All that the bits of a head
            depend on is chosen for them: splits of row tiles, and orders of sums. None: those of this call.

    Raises:
        ValueError: not a mask; query heads that are not a multiple of KV heads; a head dim without tile
            sizes.
    """
    if not isinstance(mask, Mask):
        raise ValueError(
            f"the mask must be a longca Mask or a plan of plan_band_attention; it is a {type(mask).__name__}"
        )
    if min(num_q_heads, num_kv_heads) < 1 or num_q_heads % num_kv_heads or num_kv_heads % mask.num_groups:
        raise ValueError(
            f"{num_q_heads} query heads, {num_kv_heads} KV heads and {mask.num_groups} head groups of the "
            "mask: each must be a multiple of the next, and none 0"
        )
    device = torch.device(device)
    ratio = num_q_heads // num_kv_heads
    planned = planned_kv_heads or num_kv_heads
    if tiles is None:
        block = mean_block(mask)
        block_rows = block and block * min(ratio & -ratio, SM90_DQ.max_pack)
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        way = BackwardWay(None if deterministic else AddOrder.ANY)
        # without a GPU, plans are those of one that is emulated
        has_ways = capability is None or has_hopper_kernels(head_dim, capability)
        if deterministic and needs_backward and has_ways:
            way = chosen_way(mask, ratio * planned, planned, head_dim)
        tiles = choose_tiles(
            head_dim, capability, block=mean_block(mask, keys=True), block_rows=block_rows, dq_order=way.order
        )
        if BandKernel.DQ not in tiles:  # one pass
            tiles[BandKernel.DKDV] = replace(
                tiles[BandKernel.DKDV],
                kv_heads_per_section=way.kv_heads_at_once,
                rounds_per_section=way.rounds_at_once,
            )
    specs = []
    configs = {}
    for kernel in BandKernel:
        if kernel in tiles and (needs_backward or kernel is BandKernel.FORWARD):
            fit = _fit_keys if kernel is BandKernel.DKDV else _fit_queries
            spec, configs[kernel] = fit(mask, tiles[kernel], ratio, num_kv_heads, planned, head_dim)
            specs.append(spec)
    where = torch.device("cpu") if _is_small(mask) else device
    schedules = dict(zip(configs, make_schedules(mask, specs, where), strict=True))
    if BandKernel.DQ in schedules and mask.grid is not None:
        schedule = schedules[BandKernel.DQ]
        shared = schedules[BandKernel.FORWARD]
        # the largest table; all rows of a block row have the same entries
        if schedule.tile_n == shared.tile_n and torch.equal(schedule.block_ranges, shared.block_ranges):
            schedules[BandKernel.DQ] = replace(schedule, block_ranges=shared.block_ranges)
    made = {kernel: (schedule, configs[kernel]) for kernel, schedule in schedules.items()}
    kernels, _ = _on_device(made, device)
    device = kernels[BandKernel.FORWARD][0].work_tiles.device  # with its index, like the device of tensors
    return BandPlan(
        mask.seqlen_q,
        mask.seqlen_k,
        num_q_heads,
        num_kv_heads,
        head_dim,
        device,
        kernels,
        made_on_host=made if where.type != device.type else None,
    )


def _is_small(mask: Mask) -> bool:
    """True if building the tables on the CPU is faster than launching the GPU operations and
    synchronising."""
    size = max(mask.seqlen_q, mask.seqlen_k) if mask.grid is None else mask.grid.visible.size
    return size <= HOST_TOKENS


def _on_device(kernels: Kernels, device: torch.device, *others: Tensor) -> tuple[Kernels, list[Tensor]]:
    """(kernels with the same tables on the device, the others there). A table that several share is copied
    once."""
    moved = iter(
        on_device(
            [*(table for schedule, _ in kernels.values() for table in schedule.tables), *others], device
        )
    )
    found = {
        kernel: (schedule.with_tables([next(moved) for _ in schedule.tables]), config)
        for kernel, (schedule, config) in kernels.items()
    }
    return found, list(moved)


def _fit_keys(
    mask: Mask, config: TileConfig, ratio: int, num_kv_heads: int, planned: int, head_dim: int
) -> tuple[TileSpec, TileConfig]:
    """The spec and config of row tiles of keys, for `ratio` query heads of a KV head.

    Args:
        planned: KV heads that decide where and in which order sums are made. `num_kv_heads` decides only
            which heads run at the same time.
    """
    pack = min(pack_size(ratio, config.block_n), config.max_pack)
    if not config.sm90 and fills_blocks(mask, config.block_n):
        pack = 1  # the reads of all programs for one head fit into L2
    config = replace(
        config,
        heads_per_item=math.gcd(
            config.heads_per_item
            or heads_per_item_of(mask, config.in_order, ratio * planned, config.block_m),
            ratio,
        ),
    )
    head_rounds = ratio // config.heads_per_item if config.fused else 1  # items of a work tile
    # in a section the longest come first; with more heads in it, neighbouring row tiles would not read the
    # same queries at the same time
    section = even_part(planned, KV_HEADS_AT_ONCE)
    rounds = 1
    at_once = planned if config.fused else min(section + LATE * planned, planned)
    # splits of a row tile would add in any order
    max_fraction = (
        1.0 if config.in_order else at_once * head_rounds / (_splits_of_program(config) * RESIDENT_PROGRAMS)
    )
    spec = TileSpec(
        config.block_m,
        config.block_n // pack,
        True,
        max_fraction,
        in_order=config.in_order,
        stores_first=config.stores_first,
    )
    if config.fused:  # it also adds to memory, so fewer heads run at once; with several, waits are shorter
        section, rounds = heads_at_once(
            mask, config.in_order, num_kv_heads, head_rounds, config.heads_per_item, config.block_m
        )
    elif mask.grid is not None:  # their reads are scattered
        section = heads_that_fit(num_kv_heads, 4 * head_dim * mask.seqlen_q * pack)
    return spec, replace(
        config,
        kv_heads_per_section=math.gcd(config.kv_heads_per_section or section, num_kv_heads),
        rounds_per_section=math.gcd(config.rounds_per_section or rounds, head_rounds),
    )


def _fit_queries(
    mask: Mask, config: TileConfig, ratio: int, num_kv_heads: int, planned: int, head_dim: int
) -> tuple[TileSpec, TileConfig]:
    """The spec and config of row tiles of queries, for `ratio` query heads of a KV head.

    Args:
        planned: as in `_fit_keys`.
    """
    block = mean_block(mask)
    tiles_of_block = 1 if block is None or fills_blocks(mask, block) else TILES_OF_UNEVEN_BLOCK
    pack = min(pack_size(ratio, config.block_m, block and max(block // tiles_of_block, 1)), config.max_pack)
    block_m = min(config.block_m, max(64, pack * block)) if block else config.block_m
    section = math.gcd(
        config.kv_heads_per_section or heads_that_fit(planned, 4 * head_dim * mask.seqlen_k), planned
    )
    # Heads of a section begin together, the longest row tiles first. Only the last section has a tail wave
    # that no later section fills.
    num_programs = RESIDENT_PROGRAMS * WARP_GROUP_ROWS // block_m if config.sm90 else RESIDENT_PROGRAMS
    max_fraction = (section + LATE * planned) * ratio / pack / (_splits_of_program(config) * num_programs)
    spec = TileSpec(block_m // pack, config.block_n, False, max_fraction, narrow_n=config.narrow_n)
    return spec, replace(config, block_m=block_m, kv_heads_per_section=math.gcd(section, num_kv_heads))


def _splits_of_program(config: TileConfig) -> int:
    """Least number of work tiles for a program. A single program on a multiprocessor has a longer start for
    each tile, so the number is smaller."""
    return 1 if config.sm90 else 4


def of_rows(plan: BandPlan, ranges: Sequence[tuple[int, int]]) -> BandPlan:
    """The same plan for a subset of queries: other rows of an output, an LSE or dq are not touched. Row tiles
    of keys are unchanged.

    Args:
        ranges: (start, end), ascending and disjoint, each of whole units of `UNIT` rows, or to the last row.
            Only for masks of bands, whose row tiles begin at multiples of their length.
    """
    assert all(
        UNIT % schedule.tile_m == 0
        for kernel, (schedule, _) in plan.kernels.items()
        if kernel is not BandKernel.DKDV
    ), "a row tile would be in two units"
    source = plan.made_on_host or plan.kernels
    edges = torch.tensor(ranges, dtype=torch.int32).flatten()
    bounds = host_view(edges.to(source[BandKernel.FORWARD][0].work_tiles.device))

    def inside(table: Tensor) -> Tensor:
        """Those of (M, n, columns) that begin in a range, and have rows; groups padded as in
        `TileSchedule`."""
        rows = host_view(table)
        start = rows[..., ROW_START].ravel()
        end = rows[..., ROW_END].ravel()
        kept = (positions_in(bounds, start, right=True) % 2 == 1) & (end > start)
        sizes = kept.reshape(len(rows), -1).sum(1).tolist()
        return padded_groups(rows.reshape(-1, rows.shape[-1])[kept], sizes)

    def of_queries(kernel: BandKernel) -> TileSchedule:
        """The schedule of these rows. Unchanged tables are shared with the plan."""
        schedule = source[kernel][0]
        return replace(
            plan.kernels[kernel][0], work_tiles=inside(schedule.work_tiles), splits=inside(schedule.splits)
        )

    units = torch.tensor(
        [unit for start, end in ranges for unit in range(start, end, UNIT)], dtype=torch.int32
    )
    chosen = {
        kernel: (schedule if kernel is BandKernel.DKDV else of_queries(kernel), config)
        for kernel, (schedule, config) in plan.kernels.items()
    }
    kernels, (units,) = _on_device(chosen, plan.device, units)
    return replace(plan, kernels=kernels, units=units, made_on_host=None)


def fills_blocks(mask: Mask, size: int) -> bool:
    """True if blocks of queries are made of whole tiles of this size."""
    return mask.grid is not None and not any((bounds[:-1] % size).any() for bounds in mask.grid.q_bounds)


def mean_block(mask: Mask, *, keys: bool = False) -> int | None:
    """Queries (or keys) of a block, rounded up to a power of two; None for a mask without blocks."""
    if mask.grid is None:
        return None
    num_tokens = mask.seqlen_k if keys else mask.seqlen_q
    num_blocks = max(mask.grid.visible.shape[2 if keys else 1], 1)
    return 1 << (-(-num_tokens // num_blocks) - 1).bit_length()


def make_schedules(mask: Mask, specs: Sequence[TileSpec], device: torch.device) -> list[TileSchedule]:
    """Builds all schedules in one pass, which on a GPU takes hardly longer than a single one."""
    # NumPy's arrays are quicker than torch's on the host
    return schedules_on(mask, specs, None if device.type == "cpu" and mask.grid is None else device)


def schedules_on(mask: Mask, specs: Sequence[TileSpec], where: torch.device | None) -> list[TileSchedule]:
    """`make_schedules` by tensors on a device; None: by NumPy, for masks of bands."""
    row_tiles = row_tiles_of(mask, specs, where)
    if mask.grid is None:
        intervals = intervals_of(mask, row_tiles, where)
        full, partial = cut_intervals(intervals)
        partial = masks_of(intervals, partial)
    else:
        full, partial = blocks_of_grid(mask.grid, row_tiles, where or torch.device("cpu"))
    made = zip(specs, schedules_of(row_tiles, full, partial), strict=True)
    return [_in_order(mask, spec, schedule) if spec.in_order else schedule for spec, schedule in made]


def _in_order(mask: Mask, spec: TileSpec, schedule: TileSchedule) -> TileSchedule:
    sizes = (mask.seqlen_k, mask.seqlen_q) if spec.transposed else (mask.seqlen_q, mask.seqlen_k)
    return replace(
        with_waits(schedule, spec.in_order),
        stores_first=spec.stores_first and may_store_first(schedule, *sizes),
    )
