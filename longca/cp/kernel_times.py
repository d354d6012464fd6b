"""Times of the kernel calls of a plan's steps, by a fitted model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longca.cp.partition.sharding import StripedSharding, contiguous
from longca.cp.schedule.planner import partition_mask
from longca.predict.call import call_amounts, whole_statistics
from longca.predict.kernel import even_idle, heads_of_item, part_amounts
from longca.predict.ways import covers_all, items_of, ways_of_parts

if TYPE_CHECKING:
    from longca.core.call import CallSpec
    from longca.cp.schedule.plan import Plan
    from longca.masks.mask import Mask
    from longca.predict.call import CallModel
    from longca.predict.kernel import KernelModel


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
    seconds, throttle = np.zeros(steps.shape), np.zeros(steps.shape)
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
    mask, ratio = plan.partition.mask, num_q // num_kv
    whole, groups, ends = whole_statistics(mask, model.shape, ratio), mask.num_groups, row_ends(mask)
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
    area, band_rows = plan.step_areas / groups, plan.step_band_rows / groups
    rows, keys = np.minimum(plan.sharding.num_tokens[:, None], band_rows), _step_keys(plan)
    computed = (
        rows * keys if covers_all(model.kernel, model.direction, mask.traits) else area + hidden * band_rows
    )
    partial = np.minimum(partial * band_rows, computed)
    items = items_of(model.kernel, model.direction, model.way)
    lines = np.ceil(keys / model.shape.keys if items.by_keys else rows / model.shape.tokens(ratio))
    idle = items.share * even_idle(
        computed * num_q, lines * num_q / heads_of_item(items, model.shape, ratio), in_order=items.in_order
    )
    found = part_amounts(computed - partial, partial, 0.0, rows, idle, num_q, num_kv)
    return model.boosted_s(found * (plan.step_areas > 0)[..., None], call.head_dim)


def row_ends(mask: Mask) -> float:
    """Rows of bands of a mask, over its head groups."""
    key = "row ends"
    if key not in mask.kept:
        mask.kept[key] = float(partition_mask(mask, contiguous(mask.seqlen_q, 1)).band_rows.sum())
    return mask.kept[key]
