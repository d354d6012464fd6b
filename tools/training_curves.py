"""Runs examples/train_packed.py on 1, 2 and 4 ranks with every strategy and mask, and draws the loss curves
for the guide.

    python -m tools.training_curves --run            # minutes on a CPU: what curves.csv and runs.csv of docs/guide/training lack
    python -m tools.training_curves --run --gpus     # on 1 and 2 GPUs: gpu_curves.csv and gpu_runs.csv
    python -m tools.training_curves                  # the figures and the tables again, from these files

A run with one rank is repeated with weights that are off by a rounding of attention's inputs (2⁻²³ in
float32, 2⁻⁸ in bfloat16). So much do curves differ without any other rank: it is the measure for the
difference that ranks and strategies make.
"""  # noqa: E501

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tools.pages import ROOT, write_blocks

FOLDER = ROOT / "docs/guide/training"
PAGE = ROOT / "docs/guide/context-parallel.md"
STRATEGIES = ("ring_allgather", "ring_p2p", "ulysses", "usp", "loongtrain")
MASKS = ("causal", "causal_document", "causal_sliding_window", "alternating")
ALONE = "one rank"
NUDGED = "one rank, off by a rounding"
COLORS: dict[str, str] = dict(
    zip(STRATEGIES, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"), strict=True)
)
SHOWN = 4  # steps for each point of the figure
LEAST_SHOWN = 1e-8  # of the differences, which are shown on a logarithmic scale and may be 0
WARM_UP = 2  # steps before a run on GPUs, which compile its kernels
FACTS = ("tokens_per_s", "peak_mb", "plan_ms", "waited_ms", "moved_bytes")


@dataclass(frozen=True)
class Setting:
    """The setting of curves: the device, and the size of the model and its attention."""

    place: str
    """the name of the table on the page"""
    prefix: str
    """of the files' names"""
    device: str
    worlds: tuple[int, ...]
    rounding: float
    sizes: dict[str, Any] = field(default_factory=dict)
    """`Options` of examples/train_packed.py"""
    early: int = 50
    """steps, before attention has learnt"""
    note: str = ""
    folder: Path = FOLDER

    @property
    def curves(self) -> Path:
        return self.folder / f"{self.prefix}curves.csv"

    @property
    def runs(self) -> Path:
        return self.folder / f"{self.prefix}runs.csv"

    @property
    def figure(self) -> Path:
        return self.folder / f"{self.prefix}curves.svg"


CPU = Setting(
    "training_curves",
    "",
    "cpu",
    (2, 4),
    2.0**-23,
    note="Ranks are processes that share two cores, so more of them are not quicker here.",
)
GPUS = Setting(
    "training_curves_gpus",
    "gpu_",
    "cuda",
    (2,),
    2.0**-8,
    {
        "tokens": 16384,
        "num_q_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 128,
        "dtype": "bfloat16",
        "rate": 1e-3,
    },
    early=5,
    note="16384 tokens a step, width 1024, 8 query and 2 KV heads of 128; attention in bfloat16, "
    "other matmuls in TF32.",
)


@dataclass(frozen=True)
class Run:
    mask: str
    how: str
    """a strategy; or ALONE, NUDGED"""
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.mask}/{self.how}/{self.ranks}"


def all_runs(ranks: int) -> list[Run]:
    how = (ALONE, NUDGED) if ranks == 1 else STRATEGIES
    return [Run(mask, strategy, ranks) for mask in MASKS for strategy in how]


def measure(setting: Setting, steps: int) -> None:
    """Makes the runs that the CSV files lack. Each is written when it ends, so a call that was stopped goes
    on where it was."""
    from torch.multiprocessing.spawn import spawn

    setting.folder.mkdir(exist_ok=True)
    for ranks in (1, *setting.worlds):
        known = read(setting)[0] if setting.curves.exists() else {}
        if todo := [run for run in all_runs(ranks) if run not in known]:
            with tempfile.TemporaryDirectory() as folder:
                spawn(_rank, (ranks, Path(folder, "meeting").as_uri(), todo, setting, steps), nprocs=ranks)


def write(setting: Setting, losses: dict[Run, np.ndarray], facts: dict[Run, dict[str, float]]) -> None:
    """Writes both CSV files, runs in the order in which they are made."""
    runs = [run for ranks in (1, *setting.worlds) for run in all_runs(ranks) if run in losses]
    steps = zip(*(losses[run] for run in runs), strict=True)
    with setting.curves.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *(run.name for run in runs)])
        writer.writerows([step, *(f"{value:.9g}" for value in values)] for step, values in enumerate(steps))
    with setting.runs.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", *FACTS])
        writer.writerows([run.name, *(f"{facts[run][name]:.6g}" for name in FACTS)] for run in runs)


def _rank(rank: int, ranks: int, meeting: str, runs: Sequence[Run], setting: Setting, steps: int) -> None:
    from dataclasses import replace

    import torch
    import torch.distributed as dist

    from examples.train_packed import Options, train

    torch.set_num_threads(1)
    if setting.device == "cuda":
        torch.cuda.set_device(rank)
        torch.set_float32_matmul_precision("high")
    dist.init_process_group(
        "nccl" if setting.device == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=ranks
    )
    for run in runs:
        options = Options(
            mask=run.mask,
            strategy=run.how if run.how in STRATEGIES else "ring_p2p",
            steps=steps,
            off_by=setting.rounding if run.how == NUDGED else 0.0,
            **setting.sizes,
        )
        if setting.device == "cuda":
            train(replace(options, steps=WARM_UP))
        result = train(options)
        if rank == 0:
            print(
                run.name, f"{result['losses'][-1]:.6f}", f"{result['tokens_per_s']:.0f} tokens/s", flush=True
            )
            losses, facts = read(setting) if setting.curves.exists() else ({}, {})
            write(setting, losses | {run: np.array(result["losses"])}, facts | {run: result})
    dist.destroy_process_group()


def read(setting: Setting) -> tuple[dict[Run, np.ndarray], dict[Run, dict[str, float]]]:
    """(losses, facts) of each run."""
    with setting.curves.open(encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    values = np.array(rows, dtype=float)
    with setting.runs.open(encoding="utf-8") as file:
        facts = {
            run_of(row["run"]): {name: float(row[name]) for name in FACTS} for row in csv.DictReader(file)
        }
    return {run_of(name): values[:, column] for column, name in enumerate(names) if column}, facts


def run_of(name: str) -> Run:
    mask, how, ranks = name.split("/")
    return Run(mask, how, int(ranks))


def differences(losses: dict[Run, np.ndarray]) -> dict[Run, np.ndarray]:
    """The relative difference of each step's loss from that of one rank."""
    return {
        run: abs(curve / losses[Run(run.mask, ALONE, 1)] - 1)
        for run, curve in losses.items()
        if run.how != ALONE
    }


def table(
    losses: dict[Run, np.ndarray], facts: dict[Run, dict[str, float]], setting: Setting
) -> Iterator[str]:
    """The lines of the page's table, below a sentence that says what they come to."""
    apart = differences(losses)
    nudged = max(float(curve.max()) for run, curve in apart.items() if run.how == NUDGED)
    worst = max((float(curve.max()), run.name) for run, curve in apart.items() if run.how != NUDGED)
    early = max(float(curve[: setting.early].max()) for run, curve in apart.items() if run.how != NUDGED)
    steps = len(next(iter(losses.values())))
    runs = [run for run in losses if run.how in STRATEGIES]
    yield (
        f"In {len(runs)} runs of {steps} steps on {' and '.join(map(str, setting.worlds))} ranks, no loss "
        f"of any step is further than {worst[0]:.1e} from that of one rank ({worst[1]}). One rank whose "
        f"first weights are off by a rounding is as far as {nudged:.1e} from itself. Over the first "
        f"{setting.early} steps no run on several ranks is further than {early:.1e}: later all differences "
        "grow, those of one rank, too."
    )
    yield ""
    yield "| mask | loss, first → last step | " + " | ".join(STRATEGIES) + " | off by a rounding |"
    yield "|---|---|" + "---|" * (len(STRATEGIES) + 1)
    for mask in MASKS:
        alone = losses[Run(mask, ALONE, 1)]
        cells = [
            " / ".join(f"{apart[Run(mask, how, ranks)].max():.0e}" for ranks in setting.worlds)
            for how in STRATEGIES
        ]
        yield (
            f"| `{mask}` | {alone[0]:.3f} → {alone[-1]:.3f} | "
            + " | ".join(cells)
            + f" | {apart[Run(mask, NUDGED, 1)].max():.0e} |"
        )
    yield ""
    yield (
        f"Largest relative difference of a step's loss from one rank, on "
        f"{' / '.join(map(str, setting.worlds))} ranks."
    )
    yield ""
    yield "| | one rank | " + " | ".join(STRATEGIES) + " |"
    yield "|---|---|" + "---|" * len(STRATEGIES)
    for name, unit, scale, digits in (
        ("tokens_per_s", "tokens/s", 1, ".0f"),
        ("peak_mb", "peak memory of a rank, MB", 1, ".0f"),
        ("plan_ms", "planning, ms a step", 1, ".1f"),
        ("waited_ms", "of which waited for", 1, ".1f"),
        ("moved_bytes", "sent by a rank, MB a step", 1e-6 / steps, ".2f"),
    ):

        def of(how: str, ranks: int, name: str = name, scale: float = scale, digits: str = digits) -> str:
            return format(np.median([facts[Run(mask, how, ranks)][name] for mask in MASKS]) * scale, digits)

        cells = [" / ".join(of(how, ranks) for ranks in setting.worlds) for how in STRATEGIES]
        yield f"| {unit} | {of(ALONE, 1)} | " + " | ".join(cells) + " |"
    yield ""
    yield f"Median over the masks. {setting.note}"


def draw(losses: dict[Run, np.ndarray], setting: Setting) -> None:
    """Draws a column for each mask: the curves, and below them their differences from that of one rank.

    One point is drawn for each SHOWN steps: the mean of the losses and the largest difference.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.hashsalt": "longca",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(MASKS), figsize=(11, 4.6), sharex=True, sharey="row", layout="constrained"
    )
    apart = differences(losses)
    for column, mask in enumerate(MASKS):
        upper = axes[0, column]
        lower = axes[1, column]
        upper.set_title(mask)
        upper.plot(*_few(losses[Run(mask, ALONE, 1)], np.mean), color="#c8ccd0", linewidth=5)
        lower.plot(
            *_few(apart[Run(mask, NUDGED, 1)], _largest),
            color="#9aa0a6",
            linewidth=3,
            label="one rank, off by a rounding",
        )
        for how, ranks in ((how, ranks) for how in STRATEGIES for ranks in setting.worlds):
            style = {"color": COLORS[how], "linewidth": 0.8, "linestyle": "-" if ranks == 2 else ":"}
            upper.plot(*_few(losses[Run(mask, how, ranks)], np.mean), **style)
            lower.plot(*_few(apart[Run(mask, how, ranks)], _largest), **style, label=f"{how}, {ranks} ranks")
        upper.plot([], [], color="#c8ccd0", linewidth=5, label="one rank")
        lower.set_yscale("log")
        lower.set_ylim(LEAST_SHOWN, 2 * max(float(curve.max()) for curve in apart.values()))
        lower.set_xlabel("step")
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("relative difference\nfrom one rank")
    handles, labels = (
        mine + others
        for mine, others in zip(*(ax.get_legend_handles_labels() for ax in axes[:, 0]), strict=True)
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(setting.figure, metadata={"Date": None})
    plt.close(figure)
    lines = setting.figure.read_text(encoding="utf-8").splitlines()
    setting.figure.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _largest(part: np.ndarray) -> np.ndarray:
    return np.maximum(part.max(), LEAST_SHOWN)


def _few(curve: np.ndarray, of_some: Callable[..., np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of fewer points."""
    starts = np.arange(0, len(curve), SHOWN)
    return starts, np.array([of_some(curve[start : start + SHOWN]) for start in starts])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.training_curves", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--run", action="store_true", help="make the runs that the files lack first")
    parser.add_argument("--gpus", action="store_true", help="on one and two GPUs")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    if options.run:
        measure(GPUS if options.gpus else CPU, options.steps)
    for setting in filter(lambda entry: entry.curves.exists(), (CPU, GPUS)):
        losses, facts = read(setting)
        draw(losses, setting)
        write_blocks(PAGE, **{setting.place: "\n".join(table(losses, facts, setting))})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
