"""`longca run`: measure cells."""

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import (
    DirectionFilter,
    KernelFilter,
    MaskFilter,
    Results,
    SeedFilter,
    SeqlenFilter,
    StrategyFilter,
    StudyName,
    WorldFilter,
    open_study,
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
    shard: Annotated[str, typer.Option(help="Only this shard of the workflow")] = "",
    shard_minutes: Annotated[float | None, typer.Option(help="Length of the workflow's shards", show_default=False)] = None,
    retry: Annotated[str, typer.Option(help="Measure again what ended so: 'error,timeout,oom'")] = "",
    force: Annotated[bool, typer.Option("--force", "-f", help="Measure again whatever there is")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda", show_default=False)] = None,
    launcher: Annotated[str | None, typer.Option(help="Who starts the ranks: auto, local, torchrun or srun", show_default=False)] = None,
    progress: Annotated[str | None, typer.Option(help="auto, rich or plain", show_default=False)] = None,
    results: Results = None,
    log: Annotated[Path | None, typer.Option(help="Also write one line a cell to this file", show_default=False)] = None,
) -> None:
    """Measure a study's cells. Finished cells are kept: running again goes on where it stopped.

    Ranks are started on this machine; or under torchrun or srun, one task a rank, all with this command.
    """
    from longca.bench.run.runner import run_cells
    from longca.bench.run.shards import shards, shards_of_one_machine
    from longca.bench.workers.task import find_task
    from longca.core.errors import unknown
    from longca.core.record import STATUSES

    config, chosen, folder = open_study(study, results=results, device=device, launcher=launcher, progress=progress,
                                        shard_minutes=shard_minutes)
    task = find_task(config.launcher)
    if task is not None and task.number:
        from longca.bench.workers.agent import serve

        serve(task, folder)
        return
    cells = chosen.cells()
    if shard:
        by_name = {piece.name: piece for piece in (*shards(cells, config.shard_minutes), *shards_of_one_machine(cells))}
        if shard not in by_name:
            raise unknown("shard", shard, by_name)
        cells = list(by_name[shard].cells)
    cells = selection(kernel, strategy, mask, direction, seqlen, world, seed).apply(cells)
    statuses = frozenset(part.strip() for part in retry.split(",") if part.strip())
    for status in statuses - set(STATUSES):
        raise unknown("status", status, STATUSES)
    summary = run_cells(chosen, cells, config, retry=statuses, force=force, part=shard or None, log=log, task=task)
    print(summary)
