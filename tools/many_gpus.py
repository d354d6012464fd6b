"""Predicts the study's figure over many GPUs and writes its data, its drawing, and the tables of
docs/results/h100/prediction.md.

    python -m tools.many_gpus [--again [--gpus 8,16]]

Without `--again` the numbers are those of longca/lab/advice/many_gpus.csv. Predicting them takes some two
minutes of one core, most of them for 1024 GPUs; `--gpus` predicts some numbers of GPUs and keeps the others.
No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from longca.lab.advice.many_gpus import (
    FACTORS,
    MASKS,
    STRATEGIES,
    WORLDS,
    PredictedCell,
    load,
    make,
    save,
    setting,
    verdicts,
)
from longca.lab.report.look import STRATEGIES as COLOURS
from tools.pages import ROOT, with_blocks

PAGE = ROOT / "docs/results/h100/prediction.md"
DRAWING = ROOT / "docs/results/h100/many_gpus.svg"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
MARKERS = dict(zip(STRATEGIES, "osD^v", strict=True))


def rates(cells: Sequence[PredictedCell]) -> str:
    """One table for each direction: TFLOP/s a GPU with intervals."""
    known = {
        (cell.mask, cell.direction, cell.strategy, cell.world): cell
        for cell in cells
        if cell.network_factor == 1
    }
    rows = []
    for way, word in DIRECTIONS.items():
        lines = [
            f"Predicted TFLOP/s a GPU, {word} (90 % interval).",
            "",
            f"| mask | strategy | {' | '.join(map(str, WORLDS))} |",
            f"|---|---|{'---:|' * len(WORLDS)}",
        ]
        for mask in MASKS:
            for strategy in STRATEGIES:
                texts = [_rate(known.get((mask, way, strategy, world))) for world in WORLDS]
                lines.append(f"| {mask} | {strategy} | {' | '.join(texts)} |")
        rows.append("\n".join(lines))
    return "\n\n".join(rows)


def _rate(cell: PredictedCell | None) -> str:
    if cell is None or cell.tflops is None or cell.tflops_low is None or cell.tflops_high is None:
        return "–"
    return f"{cell.tflops:.0f} ({cell.tflops_low:.0f}–{cell.tflops_high:.0f})"


def judged(cells: Sequence[PredictedCell]) -> str:
    """The predicted verdicts."""
    lines = []
    for number, verdict in sorted(verdicts(cells).items()):
        lines += [f"- **Claim {number}**: {verdict.claim.sentence}", f"  *{verdict.text}*"]
    return "\n".join(lines)


def conclusion(cells: Sequence[PredictedCell]) -> str:
    """The best strategies at 8, 96 and 1024 GPUs under documents, and the number of settings that depend on
    the network, from the cells alone."""
    sentences = []
    for world in (8, 96, 1024):
        here = [
            cell
            for cell in cells
            if cell.network_factor == 1
            and cell.world == world
            and cell.mask == "causal_document"
            and cell.tflops
        ]
        if not here:
            continue
        best = {
            way: max((cell for cell in here if cell.direction == way), key=lambda cell: cell.tflops or 0.0)
            for way in DIRECTIONS
        }
        sentences.append(
            f"{world}: {best['fwd'].strategy} {best['fwd'].tflops:.0f} forward, {best['bwd'].strategy} "
            f"{best['bwd'].tflops:.0f} backward"
        )
    orders = {factor: {} for factor in FACTORS}
    for cell in cells:
        if cell.tflops:
            orders[cell.network_factor].setdefault((cell.mask, cell.world, cell.direction), {})[
                cell.strategy
            ] = cell.tflops
    firsts = {
        factor: {key: max(rates, key=rates.__getitem__) for key, rates in known.items()}
        for factor, known in orders.items()
    }
    same = sum(len({firsts[factor][key] for factor in FACTORS}) == 1 for key in firsts[1.0])
    *lower, highest = (f"{factor:g}" for factor in sorted(FACTORS))
    return (
        f"Best under causal documents, TFLOP/s a GPU by number of GPUs: {'; '.join(sentences)}. The best "
        f"strategy is the same with {', '.join(lower)} and {highest} times the assumed rate between nodes "
        f"in {same} of {len(firsts[1.0])} settings of mask, GPUs and direction."
    )


def draw(cells: Sequence[PredictedCell]) -> str:
    """Four masks × two directions: rates over GPUs, intervals as bands."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "many_gpus"
    canvas = Figure(figsize=(11, 5.4), layout="constrained")
    axes = canvas.subplots(2, len(MASKS), sharex=True, sharey=True)
    for row, way in enumerate(DIRECTIONS):
        for column, mask in enumerate(MASKS):
            ax = axes[row][column]
            for strategy in STRATEGIES:
                panel_key = mask, way, strategy, 1
                here = sorted(
                    (
                        cell
                        for cell in cells
                        if (cell.mask, cell.direction, cell.strategy, cell.network_factor) == panel_key
                        and cell.tflops
                    ),
                    key=lambda cell: cell.world,
                )
                worlds = [cell.world for cell in here]
                colour = COLOURS[strategy][0]
                ax.fill_between(
                    worlds,
                    [cell.tflops_low or 0 for cell in here],
                    [cell.tflops_high or 0 for cell in here],
                    color=colour,
                    alpha=0.1,
                    linewidth=0,
                )
                ax.plot(
                    worlds,
                    [cell.tflops or 0 for cell in here],
                    marker=MARKERS[strategy],
                    color=colour,
                    markersize=4,
                    linewidth=1.3,
                    label=strategy,
                )
            ax.set_xscale("log", base=2)
            ax.set_xticks(WORLDS, [str(world) for world in WORLDS], fontsize=7)
            ax.minorticks_off()
            ax.set_ylim(bottom=0)
            ax.grid(alpha=0.2, linewidth=0.6)
            ax.tick_params(labelsize=7)
            ax.set_title(f"{mask}, {DIRECTIONS[way]}", fontsize=9)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    axes[0][0].set_ylabel("TFLOP/s a GPU, predicted", fontsize=8)
    axes[1][0].set_ylabel("TFLOP/s a GPU, predicted", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    canvas.legend(
        handles, labels, loc="outside upper center", ncols=len(STRATEGIES), frameon=False, fontsize=9
    )
    out = io.StringIO()
    canvas.patch.set_facecolor("white")
    canvas.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def content(cells: Sequence[PredictedCell]) -> str:
    """The page with all that follows from the cells."""
    return with_blocks(
        PAGE,
        many_gpus_conclusion=conclusion(cells),
        many_gpus_rates=rates(cells),
        many_gpus_claims=judged(cells),
        many_gpus_setting=f"Setting: {setting()}.",
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.many_gpus", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--again", action="store_true", help="predict anew")
    parser.add_argument(
        "--gpus",
        type=lambda text: [int(part) for part in text.split(",")],
        default=list(WORLDS),
        help="only these numbers of GPUs",
    )
    options = parser.parse_args(arguments)
    if options.again:
        kept = (
            [cell for cell in load() if cell.world not in options.gpus]
            if set(options.gpus) != set(WORLDS)
            else []
        )
        order = {world: index for index, world in enumerate(WORLDS)}
        save(sorted([*kept, *make(options.gpus)], key=lambda cell: order[cell.world]))
    cells = load()
    PAGE.write_text(content(cells), encoding="utf-8")
    DRAWING.write_text(draw(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
