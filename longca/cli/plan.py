"""The command `longca plan`: cells, jobs and GPU hours of a study before it is run."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer

from longca.cli.options import (
    DirectionFilter,
    Json,
    KernelFilter,
    MaskFilter,
    SeedFilter,
    SeqlenFilter,
    StrategyFilter,
    StudyName,
    WorldFilter,
    open_study,
    print_json,
    print_table,
    selection,
)


def command(
    study: StudyName = None,
    kernel: KernelFilter = "",
    strategy: StrategyFilter = "",
    mask: MaskFilter = "",
    direction: DirectionFilter = "",
    seqlen: SeqlenFilter = "",
    world: WorldFilter = "",
    seed: SeedFilter = "",
    gpu: Annotated[str, typer.Option(help="GPU of config/hardware.yaml to estimate for")] = "H100 SXM",
    cells: Annotated[bool, typer.Option("--cells", help="List every cell")] = False,
    as_json: Json = False,
) -> None:
    """Say what a study would do and how long it takes. Runs nothing.

    Counts its cells, names what is unsupported and why, and estimates its GPU hours.
    """
    from longca.bench.run.predict import EFFICIENCY, Predictor
    from longca.bench.run.shards import shards

    config, chosen, _ = open_study(study)
    wanted = selection(kernel, strategy, mask, direction, seqlen, world, seed).apply(chosen.cells())
    peak_flops, predictor = _peak_flops(gpu), Predictor("cuda")
    predictions = {cell.cell_id: predictor.predict(cell) for cell in wanted}
    methods: dict[str, _Method] = {}
    reasons = Counter[tuple[str, str]]()
    for cell in wanted:
        prediction, of_method = predictions[cell.cell_id], methods.setdefault(cell.method, _Method(cell.kind))
        of_method.num_cells += 1
        if prediction.unsupported:
            of_method.num_unsupported += 1
            reasons[cell.method, prediction.unsupported] += 1
        else:
            of_method.gpu_hours += prediction.seconds(peak_flops, chosen.measure_of(cell)) * cell.world / 3600
    gpu_hours = sum(method.gpu_hours for method in methods.values())
    num_jobs = len(shards(wanted, config.shard_minutes))
    if as_json:
        print_json({
            "study": chosen.name, "num_cells": len(wanted), "num_jobs": num_jobs, "gpu": gpu, "gpu_hours": gpu_hours,
            "methods": {name: vars(method) for name, method in methods.items()},
            "unsupported": [{"method": name, "reason": reason, "num_cells": count} for (name, reason), count in reasons.items()],
            "cells": [{"cell_id": cell.cell_id, **cell.model_dump()} for cell in wanted] if cells else None})
        return
    if cells:
        print_table("Cells", ["cell_id", "cell", "unsupported because"],
                    [[cell.cell_id, cell.title, predictions[cell.cell_id].unsupported or ""] for cell in wanted])
    print_table(f"{chosen.name}: {len(wanted):,} cells, {num_jobs} jobs, about {gpu_hours:.1f} GPU hours on {gpu}",
                ["method", "kind", "cells", "unsupported", "GPU hours"],
                [[name, method.kind, method.num_cells, method.num_unsupported, round(method.gpu_hours, 2)]
                 for name, method in methods.items()],
                caption=f"Estimated at {EFFICIENCY:.0%} of the bf16 peak, as if all supported cells fit; checks are included.")
    if reasons:
        print_table("Unsupported", ["method", "why", "cells"], [[*key, count] for key, count in reasons.most_common()])
    else:
        print("Every kernel and strategy of the study supports all of its masks.")


@dataclass
class _Method:
    """The cells of one method, counted, and their GPU hours."""

    kind: str
    num_cells: int = 0
    num_unsupported: int = 0
    gpu_hours: float = 0.0


def _peak_flops(gpu: str) -> float:
    from longca.core.errors import unknown
    from longca.store.hardware import load_hardware

    known = {one.name: one.peak_tflops.value * 1e12 for one in load_hardware().gpus}
    if gpu not in known:
        raise unknown("GPU", gpu, known, todo="GPUs are listed in config/hardware.yaml")
    return known[gpu]
