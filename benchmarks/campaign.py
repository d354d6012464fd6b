"""The campaign: the study's single-GPU grid on one model of GPU, in many sessions of ten minutes.

    python -m benchmarks.campaign h100
    python -m benchmarks.renew --next h100 --seconds 540 --pack FOLDER
    python -m tools.merge_records reports/h100/h100-dense.parquet HOME…
    python -m benchmarks.campaign --write

The first command lists the parts that are left, in their order, with GPU minutes. The second one measures as
many as fit on all GPUs of a machine, the third one puts what came home into the committed file, and the last
one writes the table of docs/results/h100/campaign.md. The campaign on H200s is `h200`.

A part is a call of `longca run` for one length and some masks, with all kernels: unequal protocols are not
ranked, so a case is worth something once it is complete. What `reports/GPU/STUDY.parquet` has by the present
protocol is left out (`--known`); its cells are played off with those that are measured, where they were not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks.renew import Part, rest, run
from longca.core import UserError, format_length, unknown
from longca.lab.bench import Prediction, Predictor, gpu_machine, playoff_hours
from longca.lab.bench.run.players import Playoff, unplayed
from longca.lab.cli.terminal import until_reader_leaves
from longca.lab.store import known_cells
from longca.lab.store.text import plural
from longca.lab.studies import Cell, Study, load_study
from tools.pages import ROOT, write_blocks

PART_MINUTES = 8.5  # of at most 9: a call also measures controls
START_SECONDS = 9.0  # of a kernel's process: in reports/h100/rested 139 starts took 8.4 s on average
NUM_GPUS = (1, 2, 4)


class Stage(NamedTuple):
    """A part of the grid that is measured before the next one."""

    about: str
    study: str
    seqlen: int | None = None
    heads: tuple[int, int] | None = None
    seeds: tuple[int, ...] | None = None

    def has(self, cell: Cell) -> bool:
        """True if the cell belongs to it, unless an earlier stage has it."""
        return (
            self.seqlen in (None, cell.seqlen)
            and self.heads in (None, (cell.num_q_heads, cell.num_kv_heads))
            and (self.seeds is None or cell.seed in self.seeds)
        )


class Campaign(NamedTuple):
    """The stages on one model of GPU."""

    gpu: str
    """of config/hardware.yaml"""
    stages: tuple[Stage, ...]


CAMPAIGNS: Mapping[str, Campaign] = {
    "h100": Campaign(
        "H100 SXM",
        (
            Stage("dense, 32K, 64:8: README's 24 cases", "h100-dense", 32 << 10, (64, 8), (0,)),
            Stage("dense, 8K, 64:8", "h100-dense", 8 << 10, (64, 8), (0,)),
            Stage("the study's own kernels and draws", "as-study"),
            Stage("the study's own draws, all lengths", "h100-compat"),
            Stage("block-sparse, 128K, 64:8", "h100-sparse", 128 << 10, (64, 8), (0,)),
            Stage("dense, the rest of 64:8", "h100-dense", None, (64, 8)),
            Stage("dense, 64:64", "h100-dense"),
            Stage("block-sparse, the rest", "h100-sparse"),
        ),
    ),
    "h200": Campaign(
        "H200 SXM",
        (
            Stage("dense, 32K, 64:8", "h200-dense", 32 << 10, (64, 8), (0,)),
            Stage("dense, 8K, 64:8", "h200-dense", 8 << 10, (64, 8), (0,)),
            Stage("dense, 16K, 64:8", "h200-dense", 16 << 10, (64, 8), (0,)),
            Stage("dense, the rest of 64:8", "h200-dense", None, (64, 8)),
            Stage("dense, 64:64", "h200-dense"),
            Stage("block-sparse, 128K, 64:8", "h200-sparse", 128 << 10, (64, 8), (0,)),
            Stage("block-sparse, the rest", "h200-sparse"),
        ),
    ),
}


@dataclass
class Progress:
    """A stage's cells."""

    stage: Stage
    cells: list[Cell]
    refused: set[str]
    """ids of cells whose kernel does not run that mask"""
    known: set[str]
    """ids of cells with a record of the present protocol"""
    unplayed: list[Playoff]
    """play-offs of cases that have such cells"""
    parts: dict[str, Part] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)
    """of each part, on one GPU"""

    @property
    def left(self) -> list[Cell]:
        """The cells that run and are not measured."""
        return [cell for cell in self.cells if cell.cell_id not in self.refused | self.known]


def progress(name: str, reports: Path = ROOT / "reports") -> list[Progress]:
    """The measured and the remaining cells of each stage. Raises UserError."""
    if name not in CAMPAIGNS:
        raise unknown("campaign", name, CAMPAIGNS)
    campaign = CAMPAIGNS[name]
    peak_flops = gpu_machine(campaign.gpu).flops
    studies = {stage.study: load_study(stage.study) for stage in campaign.stages}
    cells = {study: list(content.cells()) for study, content in studies.items()}
    predictor = Predictor("cuda", is_here=False)
    predictions = {study: predictor.predict_all(cells[study]) for study in studies}
    files = {study: reports / name / f"{content.name}.parquet" for study, content in studies.items()}
    known = {
        study: known_cells(cells[study], [file] if file.is_file() else [], studies[study].measure_of)
        for study, file in files.items()
    }
    to_play = {study: unplayed(known[study], content) for study, content in studies.items()}
    taken = set[tuple[str, str]]()
    stages = []
    for number, stage in enumerate(campaign.stages, 1):
        own = [
            cell
            for cell in cells[stage.study]
            if stage.has(cell) and (stage.study, cell.cell_id) not in taken
        ]
        taken |= {(stage.study, cell.cell_id) for cell in own}
        refused = {cell.cell_id for cell in own if predictions[stage.study][cell.cell_id].unsupported}
        now = Progress(
            stage,
            own,
            refused,
            {cell.cell_id for cell in own if cell.cell_id in known[stage.study].facts},
            [playoff for playoff in to_play[stage.study] if not set(own).isdisjoint(playoff.players)],
        )
        _add_parts(
            now,
            f"{name}-{number}",
            name if files[stage.study].is_file() else None,
            studies[stage.study],
            predictions[stage.study],
            peak_flops,
        )
        stages.append(now)
    return stages


def parts_that_fit(
    name: str,
    seconds: float,
    num_gpus: int,
    has_ended: Callable[[str, Part], bool] = lambda name, part: False,
) -> dict[str, Part]:
    """The next parts of a campaign that so many GPUs begin within so many seconds. Raises UserError.

    Args:
        has_ended: tells of a part and its name whether it is done, though its records are not home yet.
    """
    chosen: dict[str, Part] = {}
    ends = [0.0] * num_gpus
    for stage in progress(name):
        for part, minutes in stage.minutes.items():
            if has_ended(part, stage.parts[part]):
                continue
            first = min(range(num_gpus), key=ends.__getitem__)
            if ends[first] >= seconds:
                return chosen
            ends[first] += 60 * minutes
            chosen[part] = stage.parts[part]
    return chosen


def wall_minutes(minutes: Iterable[float], num_gpus: int) -> float:
    """The time until all parts have ended, each on the GPU that is free first."""
    ends = [0.0] * num_gpus
    for of_part in minutes:
        first = min(range(num_gpus), key=ends.__getitem__)
        ends[first] += of_part
    return max(ends)


def _add_parts(
    now: Progress,
    prefix: str,
    gpu: str | None,
    study: Study,
    predictions: Mapping[str, Prediction],
    peak_flops: float,
) -> None:
    """Divides what is left of a stage into calls of one length and number of heads, with as many masks as
    fit.

    Args:
        gpu: folder of the committed records; None where there are none of this study yet.
    """

    left = {cell.cell_id for cell in now.left}
    players = {player for playoff in now.unplayed for player in playoff.players}
    of_stage = [cell for cell in now.cells if cell.cell_id in left or cell in players]

    def minutes(cells: Sequence[Cell]) -> float:
        chosen = [predictions[cell.cell_id] for cell in cells]
        seconds = START_SECONDS * len({cell.kernel for cell in cells})
        seconds += sum(
            each.seconds(peak_flops, study.measure_of(each.cell))
            for each in chosen
            if each.cell.cell_id in left
        )
        return seconds / 60 + 60 * playoff_hours(chosen, study, peak_flops)[1]

    def key(cell: Cell) -> tuple[float, int, int]:
        return -cell.num_q_heads / cell.num_kv_heads, cell.num_q_heads, cell.seqlen

    for _, of_length in groupby(sorted(of_stage, key=key), key):
        for cells, axes in _calls(list(of_length), minutes):
            name = f"{prefix}-{len(now.parts) + 1}"
            options = _options(now.stage, cells, axes)
            command = run(now.stage.study, options) if gpu is None else rest(now.stage.study, options, gpu)
            num_left = sum(cell.cell_id in left for cell in cells)
            now.parts[name] = Part(f"{now.stage.about}: {_words(cells[0], num_left)}", command)
            now.minutes[name] = minutes(cells)


def _calls(
    cells: Sequence[Cell],
    minutes: Callable[[Sequence[Cell]], float],
    axes: tuple[str, ...] = ("mask", "direction", "kernel"),
) -> Iterator[tuple[list[Cell], tuple[str, ...]]]:
    """The cells in calls that fit, each with the axes that choose its cells.

    What one value of the first axis has goes together. Where that is too long, its cells are divided by the
    next axis. Kernels come last: a case that is divided by them takes several calls.
    """
    axis, *others = axes
    of_value: dict[str, list[Cell]] = {}
    for cell in cells:
        of_value.setdefault(getattr(cell, axis), []).append(cell)
    batch: list[Cell] = []
    for own in of_value.values():
        if batch and minutes([*batch, *own]) > PART_MINUTES:
            yield batch, (axis,)
            batch = []
        if minutes(own) > PART_MINUTES and others:
            for part, inner in _calls(own, minutes, tuple(others)):
                yield part, (axis, *inner)
        else:
            batch = [*batch, *own]
    if batch:
        yield batch, (axis,)


def _options(stage: Stage, cells: Sequence[Cell], axes: Sequence[str]) -> str:
    cell = cells[0]
    options = [f"--{axis} {','.join(dict.fromkeys(getattr(each, axis) for each in cells))}" for axis in axes]
    options += [f"--seqlen {cell.seqlen}", f"--heads {cell.num_q_heads}:{cell.num_kv_heads}"]
    if stage.seeds is not None:
        options.append(f"--seed {','.join(map(str, stage.seeds))}")
    return " ".join(options)


def _words(cell: Cell, num_cells: int) -> str:
    what = f"{num_cells} cells" if num_cells else "play-offs of known cells"
    return f"{what} of {format_length(cell.seqlen)} tokens, {cell.num_q_heads}:{cell.num_kv_heads}"


def finding(stages: Sequence[Progress]) -> str:
    """The numbers of measured and remaining cells, in one sentence, in Markdown."""
    runnable = sum(len(stage.cells) - len(stage.refused) for stage in stages)
    measured = sum(len(stage.known - stage.refused) for stage in stages)
    to_play = sum(len(stage.unplayed) for stage in stages)
    minutes = sum(sum(stage.minutes.values()) for stage in stages)
    due = f"{plural(to_play, 'play-off')} of them {'is' if to_play == 1 else 'are'} due"
    return (
        f"**{measured:,} of {runnable:,} cells that can run are measured, and {due}; about {minutes:,.0f} "
        "GPU minutes are left.**"
    )


def table(stages: Sequence[Progress]) -> str:
    """The stages, in Markdown."""
    head = [
        "stage",
        "study",
        "cells",
        "unsupported",
        "measured",
        "left",
        "play-offs due",
        "parts",
        "GPU minutes",
        *(f"on {num}" for num in NUM_GPUS),
    ]
    rows = [[stage.stage.about, stage.stage.study, *_numbers([stage])] for stage in stages]
    rows.append(["**all**", "", *_numbers(stages)])
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(stages: Sequence[Progress]) -> list[str]:
    minutes = [of_part for stage in stages for of_part in stage.minutes.values()]
    counts = (
        sum(len(stage.cells) for stage in stages),
        sum(len(stage.refused) for stage in stages),
        sum(len(stage.known - stage.refused) for stage in stages),
        sum(len(stage.left) for stage in stages),
        sum(len(stage.unplayed) for stage in stages),
        len(minutes),
    )
    return [
        *(f"{count:,}" for count in counts),
        f"{sum(minutes):,.0f}",
        *(f"{wall_minutes(minutes, num):,.0f}" for num in NUM_GPUS),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.campaign", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("campaign", nargs="?", default="h100", help=", ".join(CAMPAIGNS))
    parser.add_argument(
        "--write", action="store_true", help="write the table of the campaign's page in docs/results"
    )
    options = parser.parse_args(arguments)
    try:
        stages = progress(options.campaign)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.write:
        page = ROOT / "docs/results" / options.campaign / "campaign.md"
        write_blocks(page, campaign_finding=finding(stages), campaign=table(stages))
        return 0
    for stage in stages:
        for name, part in stage.parts.items():
            print(f"{name:<14} {stage.minutes[name]:5.1f} min  {part.about}\n{'':26}{part.command}")
    print(table(stages))
    return 0


if __name__ == "__main__":
    with until_reader_leaves():
        sys.exit(main(sys.argv[1:]))
