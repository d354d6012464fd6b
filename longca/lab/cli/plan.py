"""The command `longca plan`: cells, jobs, hours and memory of a study before it is run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from longca.lab.cli.list import device_type
from longca.lab.cli.options import (
    DirectionFilter,
    HeadsFilter,
    Json,
    KernelFilter,
    MaskFilter,
    NewTokensFilter,
    SeedFilter,
    SeqlenFilter,
    StrategyFilter,
    StudyName,
    WorldFilter,
    open_study,
    print_json,
    print_table,
    print_text,
    selection,
)

if TYPE_CHECKING:
    from longca.lab.bench import Machine


def command(
    study: StudyName = None,
    kernel: KernelFilter = "",
    strategy: StrategyFilter = "",
    mask: MaskFilter = "",
    direction: DirectionFilter = "",
    seqlen: SeqlenFilter = "",
    new_tokens: NewTokensFilter = "",
    heads: HeadsFilter = "",
    world: WorldFilter = "",
    seed: SeedFilter = "",
    gpu: Annotated[
        str, typer.Option(help="GPU of config/hardware.yaml to estimate for [default: this machine]")
    ] = "",
    cells: Annotated[bool, typer.Option("--cells", help="List every cell")] = False,
    as_json: Json = False,
) -> None:
    """Say what a study would do and how long it takes. Runs nothing.

    Counts its cells, names what does not run and why, and estimates hours and memory: on this machine, or on
    a GPU that is named.
    """
    from longca.lab.bench import EFFICIENCY, Predictor, gpu_machine, playoff_hours, shards, this_machine
    from longca.lab.store.text import format_bytes, plural
    from longca.lab.studies import loadable

    config, chosen, _ = open_study(study)
    wanted, _ = loadable(
        selection(kernel, strategy, mask, direction, seqlen, world, seed, heads, new_tokens).apply(
            chosen.cells()
        )
    )
    machine = (
        gpu_machine(gpu) if gpu else this_machine(config.device if config.device != "auto" else device_type())
    )
    predictions = Predictor(machine.device_type, is_here=machine.is_here).predict_all(wanted)
    peak_flops = machine.flops / EFFICIENCY if machine.device_type == "cpu" else machine.flops
    methods: dict[str, _Method] = {}
    reasons = Counter[tuple[str, str]]()
    verdicts = {}
    for cell in wanted:
        prediction = predictions[cell.cell_id]
        of_method = methods.setdefault(cell.method, _Method(cell.kind))
        of_method.num_cells += 1
        ranks = cell.world if machine.device_type == "cpu" else 1  # of a CPU share its memory
        verdicts[cell.cell_id] = verdict = (
            prediction.unsupported or prediction.unavailable or machine.too_few(cell.world)
        )
        if verdict:
            of_method.num_not_run += 1
            reasons[cell.method, verdict] += 1
            continue
        needed = prediction.memory_bytes * ranks
        of_method.most_bytes = max(of_method.most_bytes, needed)
        if machine.memory_bytes is not None and needed > machine.memory_bytes:
            of_method.num_too_large += 1
        num_gpus = cell.world if machine.device_type == "cuda" else 1
        of_method.hours += prediction.seconds(peak_flops, chosen.measure_of(cell)) * num_gpus / 3600
    running = [predictions[cell.cell_id] for cell in wanted if not verdicts[cell.cell_id]]
    num_playoffs, hours_of_playoffs = playoff_hours(running, chosen, peak_flops)
    hours = sum(method.hours for method in methods.values()) + hours_of_playoffs
    num_jobs = len(shards(wanted, config.shard_minutes, measure=chosen.measure_of)) + (num_playoffs > 0)
    if as_json:
        print_json(
            {
                "study": chosen.name,
                "num_cells": len(wanted),
                "num_jobs": num_jobs,
                "machine": machine.name,
                "gpu": gpu or None,
                "device_type": machine.device_type,
                "memory_bytes": machine.memory_bytes,
                "hours": hours,
                "gpu_hours": hours if machine.device_type == "cuda" else None,
                "num_playoffs": num_playoffs,
                "hours_of_playoffs": hours_of_playoffs,
                "methods": {name: vars(method) for name, method in methods.items()},
                "not_run": [
                    {"method": name, "reason": reason, "num_cells": count}
                    for (name, reason), count in reasons.items()
                ],
                "cells": [
                    {
                        "cell_id": cell.cell_id,
                        **cell.model_dump(),
                        "reason": verdicts[cell.cell_id],
                        "memory_bytes": predictions[cell.cell_id].memory_bytes,
                    }
                    for cell in wanted
                ]
                if cells
                else None,
            }
        )
        return
    if cells:
        print_table(
            "Cells",
            ["cell_id", "cell", "does not run because"],
            [[cell.cell_id, cell.title, verdicts[cell.cell_id] or ""] for cell in wanted],
        )
    on_gpu = machine.device_type == "cuda"
    unit, factor = ("GPU hours", 1) if on_gpu else ("hours", 1) if hours >= 1 else ("minutes", 60)
    jobs = f" in {num_jobs} jobs of the workflow" if on_gpu else ""
    room = f" with {format_bytes(machine.memory_bytes)} of memory" if machine.memory_bytes else ""
    num_not_run = sum(reasons.values())
    num_too_large = sum(method.num_too_large for method in methods.values())
    refused = "".join(
        f", {count:,} {what}"
        for count, what in ((num_not_run, "not run"), (num_too_large, "too large"))
        if count
    )
    time = f"about {_amount(factor * hours)} {unit}"
    played = f" and {plural(num_playoffs, 'play-off')}" if num_playoffs else ""
    print_text(
        f"{chosen.name}: {plural(len(wanted), 'cell')}{played}{jobs}{refused}; {time} on "
        f"{machine.name}{room}.",
        style="bold",
    )
    print_table(
        "",
        ["method", "cells", "not run", unit, "memory", "too large"],
        [
            [
                name,
                method.num_cells,
                method.num_not_run,
                _amount(factor * method.hours),
                format_bytes(method.most_bytes) if method.most_bytes else "",
                method.num_too_large,
            ]
            for name, method in methods.items()
        ]
        + (
            [["play-offs", num_playoffs, 0, _amount(factor * hours_of_playoffs), "", 0]]
            if num_playoffs
            else []
        ),
        caption=_caption(machine, f"{EFFICIENCY:.0%}"),
    )
    if reasons:
        print_table(
            "Not run", ["method", "why", "cells"], [[*key, count] for key, count in reasons.most_common()]
        )
    else:
        print("Every kernel and strategy of the study runs all of its masks there.")


@dataclass
class _Method:
    """The cells of one method, counted, with their hours and their largest need of memory."""

    kind: str
    num_cells: int = 0
    num_not_run: int = 0
    """unsupported; on this machine also unavailable, or of too many ranks"""
    hours: float = 0.0
    """of all GPUs together; of a CPU as such"""
    most_bytes: int = 0
    """of one GPU; of a CPU, of all ranks together"""
    num_too_large: int = 0


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _caption(machine: Machine, share: str) -> str:
    rate = (
        f"at {share} of the bf16 peak"
        if machine.device_type == "cuda"
        else "at the usual rate of attention on so many cores"
    )
    memory = "memory: the largest forecast " + (
        "of a rank" if machine.device_type == "cuda" else "of all ranks together"
    )
    return f"Time is estimated {rate}, checks included; {memory}." + (
        f" {machine.note}." if machine.note else ""
    )
