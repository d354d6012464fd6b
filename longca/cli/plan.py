"""`longca plan`: what a study would do, before it does it."""

from collections import Counter
from typing import Annotated

import typer

from longca.cli.options import (
    DirectionFilter,
    Json,
    KernelFilter,
    MaskFilter,
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
    gpu: Annotated[str, typer.Option(help="GPU of config/hardware.yaml to estimate for")] = "H100 SXM",
    cells: Annotated[bool, typer.Option("--cells", help="List every cell")] = False,
    as_json: Json = False,
) -> None:
    """Count a study's cells, name what is unsupported and why, and estimate its GPU hours. Runs nothing."""
    from longca.bench.plan import shards
    from longca.bench.predict import EFFICIENCY, Predictor

    config, chosen, _ = open_study(study)
    wanted = selection(kernel, strategy, mask, direction, seqlen, world).apply(chosen.cells())
    peak_flops = _peak_flops(gpu)
    predictor = Predictor("cuda")
    predictions = {cell.cell_id: predictor.predict(cell) for cell in wanted}
    rows, reasons, total_hours = [], Counter[tuple[str, str]](), 0.0
    for method in dict.fromkeys((cell.kind, cell.method) for cell in wanted):
        of_method = [cell for cell in wanted if (cell.kind, cell.method) == method]
        running = [cell for cell in of_method if not predictions[cell.cell_id].unsupported]
        for cell in of_method:
            if predictions[cell.cell_id].unsupported:
                reasons[method[1], predictions[cell.cell_id].unsupported] += 1
        hours = sum(predictions[cell.cell_id].seconds(peak_flops, chosen.measure) * cell.world for cell in running) / 3600
        total_hours += hours
        rows.append([method[1], method[0], len(of_method), len(of_method) - len(running), round(hours, 2)])
    pieces = shards(wanted, config.shard_minutes)
    if as_json:
        print_json({"study": chosen.name, "num_cells": len(wanted), "gpu": gpu, "gpu_hours": total_hours, "num_shards": len(pieces),
                    "methods": rows, "unsupported": [{"method": key[0], "reason": key[1], "num_cells": count} for key, count in reasons.items()],
                    "cells": [{"cell_id": cell.cell_id, **cell.model_dump()} for cell in wanted] if cells else None})
        return
    if cells:
        print_table("Cells", ["cell_id", "cell", "unsupported because"],
                    [[cell.cell_id, cell.title, predictions[cell.cell_id].unsupported or ""] for cell in wanted])
    print_table(f"{chosen.name}: {len(wanted):,} cells, {len(pieces)} jobs, about {total_hours:.1f} GPU hours on {gpu}",
                ["method", "kind", "cells", "unsupported", "GPU hours"], rows, caption=f"Estimate: {EFFICIENCY:.0%} of the bf16 peak, all supported cells run, checks included.")
    if not reasons:
        print("Every kernel and strategy of the study supports all of its masks.")
    else:
        print_table("Unsupported", ["method", "why", "cells"], [[method, why, count] for (method, why), count in reasons.most_common()])


def _peak_flops(gpu: str) -> float:
    from longca.core.errors import unknown
    from longca.store.hardware import load_hardware

    known = {one.name: one.peak_tflops.value * 1e12 for one in load_hardware().gpus}
    if gpu not in known:
        raise unknown("GPU", gpu, known, todo="GPUs are listed in config/hardware.yaml")
    return known[gpu]
