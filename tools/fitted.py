"""Writes longca/predict/models/, by which calls are predicted, from the committed records of each device.

    python -m tools.fitted
"""

from __future__ import annotations

import functools
from dataclasses import replace

from longca.advice.recorded import MeasuredCell, measured_cells
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.cp.runtime.steps import step_masks
from longca.cp.schedule.work_partition import WorkPartition
from longca.masks.mask import Mask
from longca.ops.band.tables.backward_rule import are_long, last_sees_nearly_all
from longca.predict.fitted import FOLDER, FittedKernels, fit_records, is_earlier, load_fitted
from longca.predict.kernel import Interval
from longca.predict.ways import EARLIER, EARLIER_MEANS, FROM_FIRST, FROM_LAST, ONE_PASS, way_of
from longca.store.hardware import load_hardware
from longca.store.load import load
from tools.pages import ROOT

RECORDS = {"h100": ("h100-dense", "h100-sparse", "h100-cp"), "h200": ("h200-dense", "h200-sparse", "h200-cp")}
OLDER_BACKWARD = "50cde0b"  # of this commit are most 4-GPU records backward; `band` then added dQ in an order that some masks made slow
OLDER_RULE = "8337dc1"  # of this commit are records backward on 2 GPUs; 551eeac, half an hour later, took one pass for fewer masks
FEWEST = 10  # records of a strategy with a kernel, for an interval of their own


def content(device: str) -> FittedKernels:
    """The models of all kernels that a device has records of, and the residuals of strategies."""
    records = load(*(ROOT / f"reports/{device}/{name}.parquet" for name in RECORDS[device])).records
    fitted = fit_records(records, RECORDS[device])
    return replace(fitted, strategies=intervals(measured_cells(records), fitted))


def intervals(cells: list[MeasuredCell], fitted: FittedKernels) -> dict[str, Interval]:
    """The residuals of each strategy, of each with one kernel, and of each with one kernel in one direction, by today's kernels.

    Noisy records are left out: they tell of what delayed them.
    """
    hardware = load_hardware()
    networks, found = {one.name: links_of(one) for one in hardware.networks}, dict[str, list[float]]()
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9
    for cell in cells:
        device = cell.device(fitted, bandwidth * PASS_EFFICIENCY)
        if device is not None and not cell.is_noisy and not is_older(cell, fitted):
            residual, name = cell.seconds / cell.forecast_s(device, networks[cell.profile]) - 1, str(cell.record.cell.strategy)
            for key in (name, method := f"{name}+{cell.record.cell.kernel}", f"{method} {cell.record.cell.direction}"):
                found.setdefault(key, []).append(residual)
    return {key: Interval.of(found[key]) for key in sorted(found) if len(found[key]) >= FEWEST}


_committed = functools.cache(load_fitted)


def is_older(cell: MeasuredCell, fitted: FittedKernels | None = None) -> bool:
    """It ran `band` as it was before the kernels that are fitted (as committed, if not given), or a way that would not be taken then."""
    record, models = cell.record, (_committed() if fitted is None else fitted).models
    if any(model.way in (FROM_LAST, FROM_FIRST) for model in models):
        return is_earlier(record)
    if (record.cell.direction, record.cell.kernel) != ("bwd", "band") or record.environment is None:
        return False
    sha = record.environment.source.git_sha or ""
    return sha.startswith(OLDER_BACKWARD) or (sha.startswith(OLDER_RULE) and cell.work is not None and _takes_another_way(cell.work))


def _takes_another_way(work: WorkPartition) -> bool:
    """Tells whether some kernel call is computed in two kernels today and was in one pass by the rule before."""
    for chunk in work.chunks:
        for head_rank, share in enumerate(chunk.heads.ranks):
            if share.q:
                plan, num_kv = work.plan_of(work.mask_groups(chunk, head_rank)), len(share.local_kv)
                masks = (mask for rank in range(plan.world) for _, _, mask in step_masks(plan, rank, merging=True).values())
                if any(was_one_pass(mask, num_kv) and way_of("band", "bwd", mask, num_kv, EARLIER) != ONE_PASS for mask in masks):
                    return True
    return False


def was_one_pass(mask: Mask, num_kv_heads: int) -> bool:
    """The rule of commit OLDER_RULE: it did not ask how many queries see a key in the mean."""
    return last_sees_nearly_all(mask) and bool(are_long(mask.area / mask.num_groups, mask.seqlen_q, mask.seqlen_k, num_kv_heads,
                                                        mean_queries=0, mean_keys=EARLIER_MEANS[1]))


if __name__ == "__main__":
    for name in RECORDS:
        (FOLDER / f"{name}.json").write_text(content(name).text(), encoding="utf-8")
