"""Writes down what is predicted of a study that nobody has run, and puts it beside the records once somebody
has.

    python -m benchmarks.predict.ahead --gpu 'H100 SXM' --write docs/results/h100/two-gpus.md   before
    python -m benchmarks.predict.ahead --gpu 'H100 SXM' --check results/ahead                     after `longca run ahead` on two of these
    python -m benchmarks.predict.ahead --gpu 'H100 SXM' --study h200-cp8                          of another study

Predictions are read from predicted_<study>.csv, beside the pages of that GPU, when they are checked, and are
not made again.
"""  # noqa: E501

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from longca.core import format_length
from longca.cp.forecast import links_of
from longca.lab.advice.draws import interval_s, with_range
from longca.lab.advice.option import candidate_of, predict, predict_each
from longca.lab.advice.question import AdviceQuestion, question_of
from longca.lab.store.load import load
from longca.lab.studies import Cell, Record, cell_mask, load_study, mask_name
from tools.pages import ROOT
from tools.table import Table, add_options

STUDY = "ahead"
FOLDERS = {
    "H100 SXM": ROOT / "docs/results/h100",
    "H200 SXM": ROOT / "docs/results/h200",
}  # GPU → that of its pages
PROFILE = "h200-copy-engines"
TOLD = ("window", "num_global", "paper_compat")  # parameters of masks that a line names


@dataclass(frozen=True)
class AheadCell:
    """One cell that was predicted before it was measured."""

    cell_id: str
    method: str
    mask: str
    tokens_per_gpu: int
    heads: str
    direction: str
    predicted_ms: float
    low_ms: float
    high_ms: float
    by_peak_ms: float | None
    """predicted by the kernels of the reference GPU and the share of peaks, as for a GPU without records;
    None on that GPU"""


def predicted(study: str, gpu: str, ranks: int | None = None) -> list[AheadCell]:
    """Predictions for each cell of a study that is for several GPUs, or for so many ranks, and that can
    run."""
    cells = []
    plans = {}
    for cell in load_study(study).cells():
        if cell.kind != "cp" or ranks not in (None, cell.world):
            continue
        key = mask_name(cell), cell.num_q_heads, cell.num_kv_heads, cell.world
        if key not in plans:
            plans[key] = (
                question_of(
                    cell_mask(cell),
                    gpus=cell.world,
                    num_q_heads=cell.num_q_heads,
                    num_kv_heads=cell.num_kv_heads,
                    profile=PROFILE,
                    gpu=gpu,
                ),
                {},
            )
        cells += _predicted(cell, *plans[key])
    return cells


def _predicted(cell: Cell, both: AdviceQuestion, shared: dict[Any, Any]) -> list[AheadCell]:
    # a cell of one direction is planned for that direction, as the engine does it
    call = replace(both.call, direction=cell.direction)
    question = replace(both, call=call, directions=(cell.direction,))
    candidate = candidate_of(question, str(cell.strategy), cell.kernel, shared, cell.strategy_params)
    if isinstance(candidate, str):
        return []
    predictions = predict_each(candidate, question, with_range(links_of(question.network)))
    made = predictions[0]
    lent = replace(question, fitted=question.reference)
    low_s, high_s = interval_s(candidate, predictions, question)
    by_peak = None if lent.is_fitted_gpu else round(predict(candidate, lent).seconds * 1e3, 3)
    params = (
        f"{key}={value}" for key, value in cell.mask_params.items() if key in TOLD and value is not False
    )
    return [
        AheadCell(
            cell.cell_id,
            cell.method,
            " ".join([cell.mask, *params]),
            cell.seqlen // cell.world,
            f"{cell.num_q_heads}:{cell.num_kv_heads}",
            cell.direction,
            round(made.seconds * 1e3, 3),
            round(low_s * 1e3, 3),
            round(high_s * 1e3, 3),
            by_peak,
        )
    ]


def written(path: Path) -> list[AheadCell]:
    """Predictions as they were written down."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            AheadCell(
                row["cell_id"],
                row["method"],
                row["mask"],
                int(row["tokens_per_gpu"]),
                row["heads"],
                row["direction"],
                float(row["predicted_ms"]),
                float(row["low_ms"]),
                float(row["high_ms"]),
                float(row["by_peak_ms"]) if row["by_peak_ms"] else None,
            )
            for row in csv.DictReader(file)
        ]


def measured_ms(records: Iterable[Record]) -> dict[str, float]:
    """Cell id → the median over samples of the slowest rank's time."""
    return {
        record.cell_id: median(map(max, zip(*record.samples.time_ms, strict=True)))
        for record in records
        if record.samples is not None and record.outcome.status == "ok"
    }


def table(cells: Sequence[AheadCell], known: dict[str, float]) -> Table:
    """One line for each cell; with a measurement where there is one."""
    rows = []
    records = []
    for cell in cells:
        ms = known.get(cell.cell_id)
        error = None if ms is None else ms / cell.predicted_ms - 1
        records.append({**asdict(cell), "measured_ms": ms, "error": error})
        found = ("", "") if ms is None or error is None else (f"{ms:.2f}", f"{100 * error:+.1f} %")
        rows.append(
            (
                cell.method,
                cell.mask,
                format_length(cell.tokens_per_gpu),
                cell.heads,
                cell.direction,
                f"{cell.predicted_ms:.2f}",
                f"{cell.low_ms:.2f}–{cell.high_ms:.2f}",
                *found,
            )
        )
    columns = ("method", "mask", "tokens a GPU", "heads", "", "predicted ms", "90 %", "measured ms", "error")
    checked = [line for line in records if line["error"] is not None]
    errors = [abs(line["error"]) for line in checked]
    caption = f"{len(cells)} cells, predicted before any was measured."
    if errors:
        inside = sum(line["low_ms"] <= line["measured_ms"] <= line["high_ms"] for line in checked)
        caption += (
            f" Of {len(errors)} that were measured since, the median error is {100 * median(errors):.1f} %, "
            f"{sum(error <= 0.12 for error in errors)} are within 12 %, and {inside} lie in their interval."
        )
        lent = [abs(line["measured_ms"] / line["by_peak_ms"] - 1) for line in checked if line["by_peak_ms"]]
        if lent:
            caption += (
                f" By another GPU's kernels and the share of peaks the median error would have been "
                f"{100 * median(lent):.1f} %."
            )
    return Table("predict_ahead", caption, columns, tuple(rows), tuple(records), columns[:5])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predict.ahead", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--check", type=Path, nargs="+", help="records of the study: a folder of results, .parquet or .json"
    )
    parser.add_argument("--gpu", choices=FOLDERS, default="H200 SXM", help="the GPUs' model (H200 SXM)")
    parser.add_argument("--study", default=STUDY, help=f"whose cells are predicted ({STUDY})")
    parser.add_argument("--ranks", type=int, help="only cells of so many")
    add_options(parser)
    options = parser.parse_args(arguments)
    path = FOLDERS[options.gpu] / f"predicted_{options.study}.csv"
    if options.check:
        table(written(path), measured_ms(load(*options.check).records)).publish(options)
        return 0
    cells = predicted(options.study, options.gpu, options.ranks)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(cells[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, cells))
    table(cells, {}).publish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
