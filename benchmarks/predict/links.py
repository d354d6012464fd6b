"""Fits the speed of messages and of elementwise passes to the measured cells of context parallelism; kernels
are those that are fitted on the records' GPU.

    python -m benchmarks.predict.links reports/h200/h200-cp.parquet

Each of a few values of every number is tried with each of the others. It prints the best; those of H200s
stand in `config/hardware.yaml` as
`h200-copy-engines` and in `longca/cp/forecast.py` as PASS_EFFICIENCY, and what other values would cost. No
GPU is needed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longca.core.errors import UserError
from longca.core.hardware import load_hardware
from longca.cp.schedule.planner import LinkSpeeds
from longca.lab.advice.recorded import MeasuredCell, measured_cells
from longca.lab.store.load import load
from longca.lab.studies.fitting import device_of
from longca.predict.fitted import FittedKernels, fitted_on

GRID = {
    "intra_gb_s": (220, 260, 300, 340, 380, 420),
    "intra_us": (5, 15, 30, 60),
    "overlap": (0.0, 0.15, 0.3, 0.45),
    "pass efficiency": (0.4, 0.55, 0.7, 0.85),
}
Point = tuple[float, ...]


def fitted_of(cells: Sequence[MeasuredCell]) -> FittedKernels:
    """The models of kernels on the GPU that ran all these cells.

    Raises:
        UserError: they are of several GPUs, or of one without models.
    """
    names = {device_of(cell.record) for cell in cells}
    found = fitted_on(names) if len(names) == 1 else None
    if found is None:
        raise UserError(
            f"Records of {', '.join(sorted(names)) or 'no GPU'} cannot be judged",
            todo="Give those of one GPU that `python -m tools.fitted` fits",
        )
    return found


def predicted(cells: Sequence[MeasuredCell], points: Sequence[Point]) -> np.ndarray:
    """Predicted over measured seconds of each cell at each point of the grid, (points, cells)."""
    fitted = fitted_of(cells)
    bandwidth = (load_hardware().bandwidth_gb_s(fitted.device) or 0) * 1e9
    found = np.full((len(points), len(cells)), np.nan)
    for number, (gb_s, us, overlap, efficiency) in enumerate(points):
        links = LinkSpeeds(gb_s * 1e9, message_s=us * 1e-6, overlap_slowdown=overlap)
        for place, cell in enumerate(cells):
            device = cell.device(fitted, bandwidth * efficiency)
            if device is not None:
                found[number, place] = cell.forecast_s(device, links) / cell.seconds
    return found


def misses(ratios: np.ndarray) -> np.ndarray:
    """The mean absolute logarithm of each point, (points,): a few cells that are far off weigh little."""
    return np.nanmean(np.abs(np.log(ratios)), axis=1)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.links", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("records", type=Path, nargs="+", help="of a study")
    parser.add_argument("--each", type=int, default=3, help="take every n-th cell (3)")
    options = parser.parse_args(arguments)
    cells = [cell for cell in measured_cells(load(*options.records).records) if cell.work is not None][
        :: options.each
    ]
    points = list(itertools.product(*GRID.values()))
    found = misses(predicted(cells, points))
    best = points[int(found.argmin())]
    print(
        f"{len(cells)} cells; best: "
        + ", ".join(f"{name} {value:g}" for name, value in zip(GRID, best, strict=True))
        + f"; mean error {found.min():.2%}"
    )
    for place, (name, values) in enumerate(GRID.items()):
        others = [found[points.index((*best[:place], value, *best[place + 1 :]))] for value in values]
        print(
            f"{name}: "
            + ", ".join(f"{value:g} {miss:.2%}" for value, miss in zip(values, others, strict=True))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
