"""Predicts the study's figure over many GPUs and writes its data, its drawing, and the tables of docs/results/h100/prediction.md.

    python -m tools.many_gpus [--again]

Without `--again` the numbers are those of longca/advice/many_gpus.csv. Predicting them takes some ten minutes of one core, most of them for
1024 GPUs. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from longca.advice.many_gpus import FACTORS, MASKS, STRATEGIES, WORLDS, PredictedCell, load, make, save, setting, verdicts
from longca.report.look.colours import STRATEGIES as COLOURS
from tools.pages import ROOT, put

PAGE = ROOT / "docs/results/h100/prediction.md"
DRAWING = ROOT / "docs/results/h100/many_gpus.svg"
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
MARKERS = dict(zip(STRATEGIES, "osD^v", strict=True))


def rates(cells: Sequence[PredictedCell]) -> str:
    """One table for each direction: TFLOP/s a GPU with intervals."""
    known = {(one.mask, one.direction, one.strategy, one.world): one for one in cells if one.network_factor == 1}
    found = []
    for way, word in DIRECTIONS.items():
        lines = [f"Predicted TFLOP/s a GPU, {word} (90 % interval).", "", f"| mask | strategy | {' | '.join(map(str, WORLDS))} |",
                 f"|---|---|{'---:|' * len(WORLDS)}"]
        for mask in MASKS:
            for strategy in STRATEGIES:
                texts = [_rate(known.get((mask, way, strategy, world))) for world in WORLDS]
                lines.append(f"| {mask} | {strategy} | {' | '.join(texts)} |")
        found.append("\n".join(lines))
    return "\n\n".join(found)


def _rate(one: PredictedCell | None) -> str:
    if one is None or one.tflops is None or one.tflops_low is None or one.tflops_high is None:
        return "–"
    return f"{one.tflops:.0f} ({one.tflops_low:.0f}–{one.tflops_high:.0f})"


def judged(cells: Sequence[PredictedCell]) -> str:
    """The predicted verdicts."""
    lines = []
    for number, one in sorted(verdicts(cells).items()):
        lines += [f"- **Claim {number}**: {one.claim.sentence}", f"  *{one.text}*"]
    return "\n".join(lines)


def conclusion(cells: Sequence[PredictedCell]) -> str:
    """Who is best at 8, 96 and 1024 GPUs under documents, and how many settings hang on the network, from the cells alone."""
    found = []
    for world in (8, 96, 1024):
        here = [one for one in cells if one.network_factor == 1 and one.world == world and one.mask == "causal_document" and one.tflops]
        if not here:
            continue
        best = {way: max((one for one in here if one.direction == way), key=lambda one: one.tflops or 0.0) for way in DIRECTIONS}
        found.append(f"{world}: {best['fwd'].strategy} {best['fwd'].tflops:.0f} forward, {best['bwd'].strategy} {best['bwd'].tflops:.0f} "
                     "backward")
    orders = {factor: {} for factor in FACTORS}
    for one in cells:
        if one.tflops:
            orders[one.network_factor].setdefault((one.mask, one.world, one.direction), {})[one.strategy] = one.tflops
    firsts = {factor: {key: max(rates, key=rates.__getitem__) for key, rates in known.items()} for factor, known in orders.items()}
    same = sum(len({firsts[factor][key] for factor in FACTORS}) == 1 for key in firsts[1.0])
    *lower, highest = (f"{factor:g}" for factor in sorted(FACTORS))
    return (f"Best under causal documents, TFLOP/s a GPU by number of GPUs: {'; '.join(found)}. The best strategy is the same with "
            f"{', '.join(lower)} and {highest} times the assumed rate between nodes in {same} of {len(firsts[1.0])} settings of mask, GPUs "
            "and direction.")


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
                place = mask, way, strategy, 1
                here = sorted((one for one in cells if (one.mask, one.direction, one.strategy, one.network_factor) == place and one.tflops),
                              key=lambda one: one.world)
                worlds, colour = [one.world for one in here], COLOURS[strategy][0]
                ax.fill_between(worlds, [one.tflops_low or 0 for one in here], [one.tflops_high or 0 for one in here], color=colour,
                                alpha=0.1, linewidth=0)
                ax.plot(worlds, [one.tflops or 0 for one in here], marker=MARKERS[strategy], color=colour, markersize=4, linewidth=1.3,
                        label=strategy)
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
    canvas.legend(handles, labels, loc="outside upper center", ncols=len(STRATEGIES), frameon=False, fontsize=9)
    out = io.StringIO()
    canvas.patch.set_facecolor("white")
    canvas.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def content(cells: Sequence[PredictedCell]) -> str:
    """The page with all that follows from the cells."""
    page = PAGE.read_text(encoding="utf-8")
    for name, block in (("many_gpus_conclusion", conclusion(cells)), ("many_gpus_rates", rates(cells)), ("many_gpus_claims", judged(cells)),
                        ("many_gpus_setting", f"Setting: {setting()}.")):
        page = put(page, name, block)
    return page


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.many_gpus", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="predict anew")
    options = parser.parse_args(arguments)
    if options.again:
        save(list(make()))
    cells = load()
    PAGE.write_text(content(cells), encoding="utf-8")
    DRAWING.write_text(draw(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
