"""Times of the kernel calls of a plan's steps, by a fitted model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.factory import partition_mask
from longca.cp.partition.load_balance import contiguous
from longca.cp.partition.sharding import StripedSharding
from longca.predict import (
    call_amounts,
    covers_all,
    even_idle,
    heads_of_item,
    items_of,
    part_amounts,
    ways_of_parts,
    whole_statistics,
)

if TYPE_CHECKING:
    from longca.core import CallSpec
    from longca.cp.schedule.plan import Plan
    from longca.masks import Mask
    from longca.predict import CallModel, KernelModel


@dataclass(frozen=True)
class DeviceModel:
    """A kernel on a GPU in one direction."""

    kernel: CallModel
    memory_bytes_per_s: float
    """bandwidth of elementwise passes"""
    merges: bool
    """True if the kernel merges results of steps in its epilogue"""


def kernels_s(
    plan: Plan, num_q: int, num_kv: int, call: CallSpec, device: DeviceModel
) -> tuple[np.ndarray, np.ndarray | float]:
    """(seconds of each rank's kernels at full clock (P, T), their throttles (P, T))."""
    steps = _step_ways(plan, num_kv, device.kernel)
    if steps is None:
        model = device.kernel.for_call(plan.partition.mask, num_kv)
        return _kernels_of_way_s(plan, num_q, num_kv, call, model), model.throttle
    seconds = np.zeros(steps.shape)
    throttle = np.zeros(steps.shape)
    for way in np.unique(steps):
        model = device.kernel.of(str(way))
        seconds = np.where(steps == way, _kernels_of_way_s(plan, num_q, num_kv, call, model), seconds)
        throttle = np.where(steps == way, model.throttle, throttle)
    return seconds, throttle


def _step_ways(plan: Plan, num_kv: int, kernel: CallModel) -> np.ndarray | None:
    """The algorithm of each step, (P, T); None if a single rank has the whole mask, or for kernels with one
    algorithm."""
    mask = plan.partition.mask
    if plan.world == 1 or mask.grid is not None or not any(model.way for model in kernel.ways):
        return None
    rows = np.minimum(plan.sharding.num_tokens[:, None], plan.step_band_rows / mask.num_groups)
    return ways_of_parts(mask, plan.step_areas / mask.num_groups, rows, _step_keys(plan), num_kv)


def _step_keys(plan: Plan) -> np.ndarray:
    """Keys of each step, (P, T)."""
    with_own = [plan.num_own_kv(0, number) > 0 for number in range(plan.num_steps)]
    return plan.received_kv + np.outer(plan.sharding.num_tokens, with_own)


def _kernels_of_way_s(plan: Plan, num_q: int, num_kv: int, call: CallSpec, model: KernelModel) -> np.ndarray:
    """`kernels_s` for one model."""
    mask = plan.partition.mask
    ratio = num_q // num_kv
    whole = whole_statistics(mask, model.shape, ratio)
    groups = mask.num_groups
    ends = row_ends(mask)
    if plan.world == 1:
        own = call_amounts(model, mask, num_q, num_kv)
        return model.boosted_s(own * (plan.step_areas > 0)[..., None], call.head_dim)
    if not isinstance(
        plan.sharding, StripedSharding
    ):  # cuts between chunks are between tiles, so no row ends there
        ends = max(ends, float(plan.step_band_rows.sum()))
    hidden, partial = (
        (amount * groups / ends if ends else 0.0) for amount in (whole.computed - whole.area, whole.partial)
    )
    area = plan.step_areas / groups
    band_rows = plan.step_band_rows / groups
    rows = np.minimum(plan.sharding.num_tokens[:, None], band_rows)
    keys = _step_keys(plan)
    computed = (
        rows * keys if covers_all(model.kernel, model.direction, mask.traits) else area + hidden * band_rows
    )
    partial = np.minimum(partial * band_rows, computed)
    items = items_of(model.kernel, model.direction, model.way)
    lines = np.ceil(keys / model.shape.keys if items.by_keys else rows / model.shape.tokens(ratio))
    idle = items.share * even_idle(
        computed * num_q, lines * num_q / heads_of_item(items, model.shape, ratio), in_order=items.in_order
    )
    amounts = part_amounts(computed - partial, partial, 0.0, rows, idle, num_q, num_kv)
    return model.boosted_s(amounts * (plan.step_areas > 0)[..., None], call.head_dim)


def row_ends(mask: Mask) -> float:
    """Rows of bands of a mask, over its head groups."""
    key = "row ends"
    if key not in mask.kept:
        mask.kept[key] = float(partition_mask(mask, contiguous(mask.seqlen_q, 1)).band_rows.sum())
    return mask.kept[key]
