"""The command `longca run`: measures cells."""

from __future__ import annotations

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
    WorldFilter,
    announce_results,
    open_study,
    print_json,
    print_table,
    print_text,
    selection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca.lab.bench import Summary
    from longca.lab.store import Known
    from longca.lab.studies import Cell, Study

MEASURED_BADLY = ("disturbed", "drifting", "noisy")  # what `--retry` takes beside a status
MOST_FAILURES = 5  # named at the end; each has its line above


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
    as_json: Json = False,
) -> None:
    """Measure a study's cells, then play off the fastest kernels. Finished cells are kept: an interrupted
    run resumes where it stopped.

    Ranks are started on this machine; or under torchrun or srun, one task a rank, all with this command.
    Exit code 1 if a cell ended as incorrect, implausible, error or timeout, now or before, or was left out
    with a broken plug-in.
    """
    from longca.core import UserError, unknown
    from longca.lab.bench import find_task, run_cells, shards, shards_of_one_machine
    from longca.lab.studies import STATUSES, loadable

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
    cells = chosen.cells()
    broken = []
    if shard:
        cells, broken = loadable(cells)  # as the workflow does, before it divides them
        by_name = {
            piece.name: piece
            for piece in (
                *shards(cells, config.shard_minutes, measure=chosen.measure_of),
                *shards_of_one_machine(cells, measure=chosen.measure_of),
            )
        }
        if shard not in by_name:
            raise unknown("shard", shard, by_name)
        cells = list(by_name[shard].cells)
    cells = asked = selection(
        kernel, strategy, mask, direction, seqlen, world, seed, heads, new_tokens
    ).apply(cells)
    statuses = frozenset(part.strip() for part in retry.split(",") if part.strip())
    for status in statuses - {*STATUSES, *MEASURED_BADLY}:
        raise unknown("status", status, (*STATUSES, *MEASURED_BADLY))
    elsewhere = None if known is None else _known(cells, known, chosen, statuses)
    if elsewhere:
        cells = [cell for cell in cells if cell.cell_id not in elsewhere.facts]
    if not shard:
        cells, broken = loadable(cells)
    broken = [*chosen.left_out, *broken]
    is_incomplete = expect_cells is not None and len(cells) != expect_cells
    if is_incomplete:
        print_text(f"{len(cells)} of {expect_cells} cells can be measured here")
    announce_results(folder, results)
    if playoff_only and not playoff:
        raise UserError("--playoff-only and --no-playoff exclude each other", todo="Give one of them")
    summary = run_cells(
        chosen,
        cells,
        config,
        retry=statuses,
        force=force,
        part=shard or None,
        log=log,
        task=task,
        playoffs="only" if playoff_only else "after" if playoff else "none",
        repeats=repeats and not playoff_only,
        elsewhere=elsewhere,
    )
    if stamp is not None:
        from longca.lab.bench import write_playoff_stamp, write_stamp

        if playoff_only:
            write_playoff_stamp(stamp, folder)
        else:
            write_stamp(stamp, folder, asked, chosen if playoff else None)
    if as_json:
        print_json(
            {
                "study": chosen.name,
                "run_id": summary.run_id,
                "folder": str(folder),
                "logs": str(summary.logs),
                "left_out": broken,
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
        _print_end(
            summary,
            (study or chosen.name) + (f" --results {results}" if results else ""),
            has_page=stamp is not None,
        )
    if is_incomplete or ((summary.num_failed or broken) and not exit_zero):
        raise typer.Exit(1)


def _known(cells: list[Cell], files: Sequence[Path], study: Study, retried: frozenset[str]) -> Known:
    """Read which of the cells the files have by the present protocol, and say how many."""
    import sys

    from longca.lab.store import known_cells

    known = known_cells(cells, files, study.measure_of, retried)
    print(known.sentence(len(cells), files), file=sys.stderr)
    return known


def _print_end(summary: Summary, study: str, has_page: bool) -> None:
    """Print the finding, the tables of the run, what failed and the next step.

    Args:
        study: as the next command needs it.
        has_page: the workflow makes the page, so that it is no next step.
    """
    from shutil import get_terminal_size

    from longca.lab.bench import ShortNames, failures, finding, outcome_table, rate_tables
    from longca.lab.store.text import plural

    playoffs = summary.playoffs
    playoffs_text = (
        str(playoffs) if playoffs and (playoffs.num_played or playoffs.num_kept or playoffs.left_out) else ""
    )
    repeated = str(summary.repeats) if summary.repeats else ""
    print_text("\n".join(filter(None, (str(summary), repeated, playoffs_text, finding(summary.board)))))
    for table in (*rate_tables(summary.board, get_terminal_size().columns), outcome_table(summary.board)):
        if table.rows:
            print_table(table.title, table.columns, table.rows, table.caption)
    failed = failures(summary.board)
    names = ShortNames([score.cell for score in summary.board.scores])
    for score in failed[:MOST_FAILURES]:
        print(
            f"{score.status}: {names.name(score.cell)}"
            + (f" at {score.raised_at}" if score.raised_at else "")
        )
    if len(failed) > MOST_FAILURES:
        print(f"… and {plural(len(failed) - MOST_FAILURES, 'cell')} more")
    if failed:
        statuses = ",".join(dict.fromkeys(score.status for score in failed))
        logs = (
            summary.logs if summary.num_measured and not summary.num_kept else summary.logs.parent
        )  # of earlier runs too
        print(f"Logs: {logs}/. After mending: longca run {study} --retry {statuses}")
    disturbed = sum(score.num_disturbed > 0 for score in summary.board.scores)
    if disturbed:
        print_text(
            f"Others used the device while {plural(disturbed, 'cell')} ran. When it is quiet: longca run "
            f"{study} --retry disturbed"
        )
    drifting = sum(score.is_drifting for score in summary.board.scores)
    if drifting:
        print_text(
            f"The times of {plural(drifting, 'cell')} drift, which the page marks. "
            f"To measure again: longca run {study} --retry drifting"
        )
    if not has_page:
        print(f"Next: longca report {study}")
