"""The command `longca run`: measures cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca.lab.cli.options import (
    DirectionFilter,
    HeadsFilter,
    Json,
    KernelFilter,
    MaskFilter,
    NewTokensFilter,
    Results,
    SeedFilter,
    SeqlenFilter,
    StrategyFilter,
    StudyName,
    Wait,
    WorldFilter,
    announce_results,
    line_width,
    open_study,
    print_json,
    print_text,
    selection,
)
from longca.lab.cli.run_end import RunEnd, end_of_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca.lab.bench import Summary
    from longca.lab.store import Known
    from longca.lab.studies import Cell, Config, Selection, Study

MEASURED_BADLY = ("disturbed", "drifting", "noisy")  # what `--retry` takes beside a status


def command(
    context: typer.Context,
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
    shard: Annotated[str, typer.Option(help="Only this shard of the workflow")] = "",
    shard_minutes: Annotated[
        float | None, typer.Option(help="Length of the workflow's shards", show_default=False)
    ] = None,
    retry: Annotated[
        str, typer.Option(help="Measure again what ended so: 'error,timeout,oom,disturbed,drifting,noisy'")
    ] = "",
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help=(
                "Leave out cells and play-offs that this records.parquet has by the present protocol, of "
                "whatever method version"
            ),
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Measure again whatever there is")] = False,
    playoff: Annotated[
        bool,
        typer.Option(
            "--playoff/--no-playoff",
            help="After the cells, time the fastest kernels of each case again, in turn",
        ),
    ] = True,
    playoff_only: Annotated[
        bool, typer.Option("--playoff-only", help="Only play off; measure no cell")
    ] = False,
    repeats: Annotated[
        bool,
        typer.Option("--repeats/--no-repeats", help="After the cells, measure a few of them a second time"),
    ] = True,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda", show_default=False)] = None,
    launcher: Annotated[
        str | None,
        typer.Option(help="Who starts the ranks: auto, local, torchrun or srun", show_default=False),
    ] = None,
    progress: Annotated[str | None, typer.Option(help="auto, rich or plain", show_default=False)] = None,
    results: Results = None,
    log: Annotated[
        Path | None, typer.Option(help="Also write one line a cell to this file", show_default=False)
    ] = None,
    stamp: Annotated[
        Path | None,
        typer.Option(
            help="Write the digest of these cells' records to this file at the end", show_default=False
        ),
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit code 0 even where cells failed: jobs of the workflow")
    ] = False,
    expect_cells: Annotated[
        int | None,
        typer.Option(
            help="Exit code 1 if there are not so many cells here: jobs of the workflow", show_default=False
        ),
    ] = None,
    wait: Wait = None,
    as_json: Json = False,
) -> None:
    """Measure a study's cells, then play off the fastest kernels. Finished cells are kept: an interrupted
    run resumes where it stopped.

    Ranks are started on this machine; or under torchrun or srun, one task a rank, all with this command.
    Exit code 1 if a cell ended as incorrect, implausible, error or timeout, now or before, or was left out
    with a broken plug-in.
    """
    from longca.core import UserError, unknown
    from longca.lab.bench import find_task, run_cells
    from longca.lab.studies import STATUSES

    config, chosen, folder = open_study(
        study,
        results=results,
        device=device,
        launcher=launcher,
        progress=progress,
        shard_minutes=shard_minutes,
    )
    task = find_task(config.launcher)
    if task is not None and task.number:
        from longca.lab.bench import serve

        serve(task, folder)
        return
    filters = selection(kernel, strategy, mask, direction, seqlen, world, seed, heads, new_tokens)
    statuses = frozenset(part.strip() for part in retry.split(",") if part.strip())
    for status in statuses - {*STATUSES, *MEASURED_BADLY}:
        raise unknown("status", status, (*STATUSES, *MEASURED_BADLY))
    if playoff_only and not playoff:
        raise UserError("--playoff-only and --no-playoff exclude each other", todo="Give one of them")
    announce_results(folder, results)

    def measure(choice: _Choice) -> Summary:
        return run_cells(
            chosen,
            choice.cells,
            config,
            retry=statuses,
            force=force,
            part=shard or None,
            log=log,
            task=task,
            playoffs="only" if playoff_only else "after" if playoff else "none",
            repeats=repeats and not playoff_only,
            elsewhere=choice.elsewhere,
            wait_s=wait,
        )

    name = (study or chosen.name) + (f" --results {results}" if results else "")
    if not (as_json or shard or known or force or log or stamp or expect_cells is not None or task):
        choices: list[_Choice] = []

        def run() -> tuple[Summary, bool]:
            choices.append(_choose(chosen, config, filters))
            return measure(choices[0]), not choices[0].broken

        end = end_of_run(chosen, config, folder, context.params, run)
        end.show(name)
        if (end.is_failure or any(choice.broken for choice in choices)) and not exit_zero:
            raise typer.Exit(1)
        return
    choice = _choose(chosen, config, filters, shard, known, statuses)
    is_incomplete = expect_cells is not None and len(choice.cells) != expect_cells
    if is_incomplete:
        print_text(f"{len(choice.cells)} of {expect_cells} cells can be measured here")
    summary = measure(choice)
    if stamp is not None:
        from longca.lab.bench import write_playoff_stamp, write_stamp

        if playoff_only:
            write_playoff_stamp(stamp, folder)
        else:
            write_stamp(stamp, folder, choice.asked, chosen if playoff else None)
    if as_json:
        print_json(
            {
                "study": chosen.name,
                "run_id": summary.run_id,
                "folder": str(folder),
                "logs": str(summary.logs),
                "left_out": choice.broken,
                "counts": summary.counts,
                "num_measured": summary.num_measured,
                "num_kept": summary.num_kept,
                "playoffs": vars(summary.playoffs) if summary.playoffs else None,
                "seconds": summary.seconds,
                "repeats": vars(summary.repeats) if summary.repeats else None,
                "cells": summary.board.rows(),
            }
        )
    else:
        RunEnd.of(summary, line_width()).show(name, has_page=stamp is not None)
    if is_incomplete or ((summary.num_failed or choice.broken) and not exit_zero):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Choice:
    """The cells of a run."""

    asked: list[Cell]
    """by the options"""
    cells: list[Cell]
    """those of them that can be measured, and are not known from files"""
    broken: list[str]
    """why plug-ins are left out"""
    elsewhere: Known | None
    """what is known from files"""


def _choose(
    study: Study,
    config: Config,
    filters: Selection,
    shard: str = "",
    known: Sequence[Path] | None = None,
    retried: frozenset[str] = frozenset(),
) -> _Choice:
    from longca.core import unknown
    from longca.lab.bench import shards, shards_of_one_machine
    from longca.lab.studies import loadable

    cells, broken = study.cells(), list[str]()
    if shard:
        cells, broken = loadable(cells)  # as the workflow does, before it divides them
        by_name = {
            piece.name: piece
            for piece in (
                *shards(cells, config.shard_minutes, measure=study.measure_of),
                *shards_of_one_machine(cells, measure=study.measure_of),
            )
        }
        if shard not in by_name:
            raise unknown("shard", shard, by_name)
        cells = list(by_name[shard].cells)
    cells = asked = filters.apply(cells)
    elsewhere = None if known is None else _known(cells, known, study, retried)
    if elsewhere:
        cells = [cell for cell in cells if cell.cell_id not in elsewhere.facts]
    if not shard:
        cells, broken = loadable(cells)
    return _Choice(asked, cells, [*study.left_out, *broken], elsewhere)


def _known(cells: list[Cell], files: Sequence[Path], study: Study, retried: frozenset[str]) -> Known:
    """Read which of the cells the files have by the present protocol, and say how many."""
    import sys

    from longca.lab.store import known_cells

    known = known_cells(cells, files, study.measure_of, retried)
    print(known.sentence(len(cells), files), file=sys.stderr)
    return known
