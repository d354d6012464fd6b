"""Fits the costs of a full block, a partial block and a call to the times of kernels over all static masks.

    python -m benchmarks.band.step_costs reports/h200 [--write docs/results/h200/band.md]

Reads the CSV of `benchmarks.band.compare`; no GPU is needed. Blocks (called steps in the CSV) are those of
band attention on Hopper. Other kernels use tiles, too, but not always the same ones, so the largest deviation
of the fit stands beside it. Work tiles have no cost of their own here: a length has about as many of them
under any mask.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from benchmarks.band.compare import Case
from benchmarks.band.tables import OURS, Record, read
from longca.core import format_length
from longca.lab.studies import cell_mask
from longca.masks import Mask
from longca.ops.band import plan_band_attention
from longca.ops.band.config import PORTABLE_TILES, SM90_DKDV, SM90_FORWARD, BandKernel
from longca.ops.band.tables.schedule import NUM_FULL, PARTIAL_END, PARTIAL_START, ROW_END, ROW_START
from tools.table import Table, add_options

KERNELS = (OURS, "band_atomic", "flex_flash", "cudnn_flex", "flex")
COSTS = ("full block, µs", "partial block, µs", "call, ms")
PROCESSORS = 132
LINES = {"fwd": BandKernel.FORWARD, "bwd": BandKernel.DKDV}


def steps_of(mask: Mask, num_q_heads: int, num_kv_heads: int, direction: str) -> tuple[np.ndarray, int]:
    """Returns (full blocks, partial blocks) of each work tile of a head in starting order, (n, 2), and for
    how many heads they run."""
    tiles = {**PORTABLE_TILES[128], BandKernel.FORWARD: SM90_FORWARD, BandKernel.DKDV: SM90_DKDV}
    plan = plan_band_attention(
        mask,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        device=torch.device("cpu"),
        tiles=tiles,
        needs_backward=direction == "bwd",
    )
    lines, tuned = plan.kernels[LINES[direction]]
    pieces = lines.work_tiles[lines.work_tiles[..., ROW_END] > lines.work_tiles[..., ROW_START]].numpy()
    heads = num_q_heads // (tuned.block_m // lines.tile_m) if direction == "fwd" else num_kv_heads
    return np.stack(
        [pieces[:, NUM_FULL], pieces[:, PARTIAL_END] - pieces[:, PARTIAL_START]], axis=1
    ), heads // len(lines.work_tiles)


def counts(record: Record) -> np.ndarray:
    """Returns (full blocks, partial blocks) that a multiprocessor has of a record's mask, and 1 call,
    (3,)."""
    num_q_heads, num_kv_heads = map(int, record.heads.split(":"))
    mask = cell_mask(Case(record.mask, record.seqlen, (num_q_heads, num_kv_heads), "fwd", (OURS,)).cell(OURS))
    steps, heads = steps_of(mask, num_q_heads, num_kv_heads, record.direction)
    return np.append(steps.sum(axis=0) * heads / PROCESSORS, 1)


def timed(folder: Path) -> list[Record]:
    """Reads the records of static masks.

    Raises:
        ValueError: there are none.
    """
    records = [record for record in read(folder) if not record.density and record.time_ms]
    if not records:
        raise ValueError(
            f"no band.csv with times of static masks in {folder}; `python -m benchmarks.band.compare` makes "
            f"it"
        )
    return records


def counts_of(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Counts the blocks of each mask of records of one length and direction."""
    return {mask: counts(record) for mask, record in {record.mask: record for record in records}.items()}


def fit_records(records: Sequence[Record], work: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """Fits costs to the times of records, one a mask, in milliseconds."""
    return fit(
        np.array([work[record.mask] for record in records]),
        np.array([record.time_ms or 0 for record in records]),
    )


def fit(work: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float]:
    """Fits work (n, 3) to times (n,) by relative least squares; returns (costs (3,), none negative, and the
    largest relative deviation)."""
    relative = work / times[:, None]
    best = np.zeros(work.shape[1])
    least = np.inf
    for chosen in (
        list(some)
        for size in range(1, work.shape[1] + 1)
        for some in combinations(range(work.shape[1]), size)
    ):
        costs = np.zeros(work.shape[1])
        costs[chosen] = np.linalg.lstsq(relative[:, chosen], np.ones(len(times)), rcond=None)[0]
        miss = float(np.square(relative @ costs - 1).sum())
        if (costs >= 0).all() and miss < least:
            best = costs
            least = miss
    return best, float(np.abs(relative @ best - 1).max())


def gaps(records: Sequence[Record]) -> Table:
    rows = []
    actual = []
    for direction, seqlen in sorted(
        {(record.direction, record.seqlen) for record in records},
        key=lambda entry: (entry[0] != "fwd", entry[1]),
    ):
        here = [record for record in records if (record.direction, record.seqlen) == (direction, seqlen)]
        work = counts_of(here)
        for kernel in KERNELS:
            own = [record for record in here if record.kernel == kernel]
            if len(own) <= len(COSTS):
                continue
            (full, partial, call), miss = fit_records(own, work)
            actual.append(
                {
                    "tokens": seqlen,
                    "direction": direction,
                    "kernel": kernel,
                    "full_step_us": full * 1e3,
                    "partial_step_us": partial * 1e3,
                    "call_ms": call,
                    "deviation": miss,
                    "masks": len(own),
                }
            )
            rows.append(
                (
                    format_length(seqlen),
                    direction,
                    kernel,
                    f"{full * 1e3:.2f}",
                    f"{partial * 1e3:.2f}",
                    f"{call:.3f}",
                    f"{100 * miss:.0f} %",
                )
            )
    caption = (
        f"Microseconds of a block on one multiprocessor of {PROCESSORS}, milliseconds of a call beside its "
        "blocks. Blocks are of 128 × 128 scores forward, of 128 keys × 64 rows backward. Last, the mask "
        "whose time is furthest from the sum."
    )
    return Table(
        "band_step_costs",
        caption,
        ("tokens", "", "kernel", *COSTS, "deviation"),
        tuple(rows),
        tuple(actual),
        ("", "kernel"),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.band.step_costs", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "records", type=Path, help="folder of the band.csv that `benchmarks.band.compare` wrote"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        gaps(timed(options.records)).publish(options)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
