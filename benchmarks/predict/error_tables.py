"""Tables of the errors of predictions, by kernel, by strategy and by mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.predict.held_out import Residual
from longca.core import format_length
from longca.lab.advice.recorded import OWN, PAPER, MeasuredCell
from longca.predict.fitted import FittedKernels
from tools.table import Table

FEWEST = 10  # cells of a number of GPUs, to be told apart
EMPTY = "–"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def median_and_most(errors: Iterable[float]) -> str:
    """ "2.1 / 7.9": median and 95th percentile of absolute errors, in percent."""
    size = np.abs(list(errors))
    return f"{100 * np.median(size):.1f} / {100 * np.quantile(size, 0.95):.1f}" if len(size) else EMPTY


def short(device: str) -> str:
    """ "NVIDIA H100 80GB HBM3" → "H100"."""
    return device.removeprefix("NVIDIA ").split()[0]


def worlds(cells: Iterable[MeasuredCell]) -> list[int]:
    """The numbers of GPUs that have more than a few cells."""
    counts = Counter(cell.record.cell.world for cell in cells)
    return [world for world in sorted(counts) if counts[world] >= FEWEST]


def kernels(fitted: FittedKernels) -> Table:
    """The errors of kernels on one GPU."""
    rows = []
    found = []
    for model in fitted.models:
        masks = model.by_mask
        lengths = model.by_length
        calls = (*filter(None, [model.way]), *model.form)
        found.append(
            {
                "kernel": model.kernel,
                "direction": model.direction,
                "calls": " ".join(calls),
                "records": masks.num_records,
                "mask_median": masks.median,
                "mask_p95": masks.p95,
                "length_median": lengths.median,
                "length_p95": lengths.p95,
                "throttle": model.throttle,
            }
        )
        rows.append(
            (
                model.kernel,
                model.direction,
                ", ".join(calls) or "all",
                str(masks.num_records),
                percent(masks.median),
                percent(masks.p95),
                percent(lengths.median),
                percent(lengths.p95),
                f"{100 * model.throttle:.0f} %",
            )
        )
    caption = (
        f"Errors of kernels on one {short(fitted.device)}, of records that were held out by mask and by "
        "length: median, and what 95 % stay below. Last, by how much long calls are slower, at the clock of "
        "the power limit."
    )
    columns = ("kernel", "", "calls", "records", "by mask", "95 %", "by length", "95 %", "long calls")
    return Table("predict_kernels", caption, columns, tuple(rows), tuple(found), columns[:3])


def strategies(residuals: Sequence[Residual]) -> Table:
    """The errors of strategies by ranks, length and direction."""
    rows = []
    found = []
    cells = [one.cell.record.cell for one in residuals]
    for world, tokens in sorted({(cell.world, cell.seqlen // cell.world) for cell in cells}):
        texts = []
        for name in (*OWN, *PAPER):
            here = [
                one.error
                for one, cell in zip(residuals, cells, strict=True)
                if (cell.world, cell.seqlen // cell.world, cell.strategy) == (world, tokens, name)
            ]
            texts.append(median_and_most(here))
            if here:
                found.append(
                    {
                        "world": world,
                        "tokens": tokens,
                        "strategy": name,
                        "cells": len(here),
                        "median": float(np.median(np.abs(here))),
                        "p95": float(np.quantile(np.abs(here), 0.95)),
                        "bias": float(np.median(here)),
                    }
                )
        rows.append((f"{world} × {format_length(tokens)}", *texts))
    caption = (
        f"Errors of {len(residuals)} cells by strategy, in percent: median / what 95 % stay below. Kernels "
        "are fitted without the mask of the cell."
    )
    return Table(
        "predict_strategies",
        caption,
        ("GPUs × tokens", *OWN, *PAPER),
        tuple(rows),
        tuple(found),
        ("GPUs × tokens",),
    )


def masks(residuals: Sequence[Residual]) -> Table:
    """The errors of own strategies by mask."""
    rows = []
    found = []
    own = [one for one in residuals if one.cell.record.cell.strategy in OWN]
    gpus = worlds(one.cell for one in own)
    columns = ["mask", *(text for world in gpus for text in (f"{world} GPUs, forward", "backward"))]
    for mask in sorted({one.cell.record.cell.mask for one in own}):
        texts = []
        for world in gpus:
            for direction in ("fwd", "bwd"):
                here = [
                    one.error
                    for one in own
                    if (one.cell.record.cell.mask, one.cell.record.cell.world, one.cell.record.cell.direction)
                    == (mask, world, direction)
                ]
                texts.append(median_and_most(here))
                if here:
                    found.append(
                        {
                            "mask": mask,
                            "world": world,
                            "direction": direction,
                            "cells": len(here),
                            "median": float(np.median(np.abs(here))),
                            "bias": float(np.median(here)),
                        }
                    )
        rows.append((mask, *texts))
    return Table(
        "predict_masks",
        "The same by mask, own strategies.",
        tuple(columns),
        tuple(rows),
        tuple(found),
        ("mask",),
    )
