"""The command `longca choose`: the methods for one call, ranked from records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.lab.cli.options import Json, Results, mask_choice, print_json, print_table

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.choose import CallQuestion, CallRanking

DIRECTIONS = {"fwd": ["fwd"], "bwd": ["bwd"], "both": ["fwd", "bwd"]}
WIDTH = 80


def command(
    mask: Annotated[
        str,
        typer.Argument(
            help="Mask, perhaps with parameters: causal, block_sparse_uniform:density=0.5", show_default=False
        ),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            show_default=False,
            help="A study, a folder of results, or files of records (.parquet, .json) [default: the records that come with the "
            "project]",
        ),
    ] = None,
    seqlen: Annotated[str, typer.Option("--seqlen", "-s", help="Tokens over all ranks")] = "32K",
    heads: Annotated[str, typer.Option(help="Query and KV heads")] = "64:8",
    head_dim: Annotated[int, typer.Option(min=1, help="Size of one head")] = 128,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32")] = "bf16",
    direction: Annotated[str, typer.Option("--direction", "-d", help="fwd, bwd or both")] = "fwd",
    world: Annotated[
        int, typer.Option("--world", "-w", min=1, help="Ranks of context parallelism; 1 for one device")
    ] = 1,
    gpu: Annotated[
        str,
        typer.Option(
            help="Only records of GPUs whose name begins so: h100  [default: all GPUs]", show_default=False
        ),
    ] = "",
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Rank kernels for a mask, from records.

    Ties follow from repeats of identical cells. Each GPU is ranked by itself. Without RUN the answer is that
    of one study, the one that measured the most methods; studies that are given are put together. Where no
    record fits, the nearest settings are named and the exit code is 2.
    """
    from longca.core.errors import UserError, unknown
    from longca.lab.cli.records import columns_of_runs
    from longca.lab.report.choose import COLUMNS, nearest_settings, rankings

    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    questions = [_question(mask, seqlen, heads, head_dim, dtype, one, world) for one in DIRECTIONS[direction]]
    table, problems = columns_of_runs(runs or [], results, COLUMNS)
    table = _on_gpu(table, gpu) if gpu else table
    found: list[tuple[CallRanking, list[str]]] = []
    for question in questions:
        answer = (
            [(ranking, []) for ranking in rankings(table, question)] if runs else _by_study(table, question)
        )
        if not answer:
            near = nearest_settings(table, question)
            lacking = f"there are none of {question.mask_text} {'on one device' if world == 1 else 'with context parallelism'}"
            raise UserError(
                f"No record has {question}",
                why=f"the nearest have {'; '.join(near)}" if near else lacking,
                todo="Ask for one of these, or measure it with `longca run`"
                if near
                else "Measure it with `longca run`",
            )
        found += answer
    if as_json:
        print_json(
            {"rankings": [_plain(*one) for one in found], "problems": [vars(problem) for problem in problems]}
        )
        return
    for ranking, also in found:
        _print(ranking, also)
    for problem in problems:
        print(f"skipped {problem}")


def _by_study(table: pd.DataFrame, question: CallQuestion) -> list[tuple[CallRanking, list[str]]]:
    """For each GPU and setting, the ranking of the study that measured the most methods with rests, or
    without where none has two with rests, and the other studies that measured some.

    Records of several studies are never put together here: they differ in their runs, in what they ask, and
    in who was measured twice.
    """
    from longca.lab.report.choose import rankings
    from longca.lab.store.table import is_ranked

    found: dict[tuple[tuple[str, ...], str], list[CallRanking]] = {}
    for _, rows in table.loc[is_ranked(table)].groupby("study", sort=False):
        for ranking in rankings(rows, question):
            found.setdefault((ranking.devices, ranking.setting), []).append(ranking)
    chosen = []
    for alike in found.values():
        first, *others = sorted(
            alike,
            key=lambda ranking: (not (ranking.rests and len(ranking.methods) > 1), -len(ranking.methods)),
        )
        chosen.append((first, [study for ranking in others for study in ranking.studies]))
    return chosen


def _on_gpu(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of devices whose name begins so, as the driver or config/hardware.yaml has it. Raises
    UserError: there are none."""
    from longca.core.errors import UserError
    from longca.lab.store.hardware import load_hardware

    hardware, devices = load_hardware(), sorted(set(table.device) - {""})
    model_names = {device: model.name for device in devices if (model := hardware.find(device))}
    wanted = name.casefold().split()
    alike = [
        device
        for device in devices
        for known in (device.removeprefix("NVIDIA "), model_names.get(device, ""), device)
        if known.casefold().split()[: len(wanted)] == wanted
    ]
    if not alike:
        raise UserError(
            f"No record is of GPU '{name}'",
            why=f"they are of {' and '.join(devices)}" if devices else "there are none",
        )
    return table.loc[table.device.isin(alike)]


def _question(
    mask: str, seqlen: str, heads: str, head_dim: int, dtype: str, direction: str, world: int
) -> CallQuestion:
    from longca.core.errors import UserError, unknown
    from longca.core.plugin import Registry
    from longca.core.units import parse_heads, parse_length
    from longca.lab.report.choose import CallQuestion
    from longca.lab.studies.cell import DTYPE_BYTES

    if dtype not in DTYPE_BYTES:
        raise unknown("dtype", dtype, DTYPE_BYTES)
    choice = mask_choice(mask)
    ((name, given),) = ({choice: {}} if isinstance(choice, str) else choice).items()
    usual = Registry("mask").load(name).resolve(given)
    try:
        num_q_heads, num_kv_heads = parse_heads(heads)
        return CallQuestion(
            name,
            {key: usual[key] for key in given},
            usual,
            parse_length(seqlen),
            num_q_heads,
            num_kv_heads,
            head_dim,
            dtype,
            direction,
            world,
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _print(ranking: CallRanking, also: list[str]) -> None:
    import textwrap

    from longca.lab.report.decide.views import share_text
    from longca.lab.report.series import rate_unit
    from longca.lab.store.text import number, plural

    print(textwrap.fill(f"{' and '.join(ranking.devices)}: {ranking.finding}", WIDTH))
    unit = rate_unit(max(placed.tflops for _, placed in ranking.methods))
    print_table(
        ranking.setting,
        ["method", "ms", unit.name, "95 %", "of best", "calls"],
        [
            [
                method,
                number(placed.ms),
                number(placed.tflops * unit.factor),
                unit.span(placed.low, placed.high),
                ""
                if placed.is_alone
                else share_text(placed.share) + (" tie" if placed.tied and placed.place > 1 else ""),
                placed.num_samples,
            ]
            for method, placed in ranking.methods
        ],
    )
    for reason, methods in _by_reason(ranking).items():
        print(textwrap.fill(f"{', '.join(methods)}: {reason}", WIDTH, subsequent_indent="  "))
    if ranking.earlier:
        told = f"{', '.join(ranking.earlier)}: measured before the present kernels; docs/results/h200/band.md has these, on one GPU"
        print(textwrap.fill(told, WIDTH, subsequent_indent="  "))
    amount = f"n = {plural(ranking.num_cells, 'cell')}, {plural(ranking.num_samples, 'sample')}"
    together = ", put together" if len(ranking.studies) > 1 else ""
    others = (
        f"; {' and '.join(also)} measured some of them, too, and stand{'s' if len(also) == 1 else ''} aside"
        if also
        else ""
    )
    print(textwrap.fill(f"{amount}; records of {', '.join(ranking.studies)}{together}{others}", WIDTH))
    print()


def _by_reason(ranking: CallRanking) -> dict[str, list[str]]:
    """Why some have no number → their names."""
    found: dict[str, list[str]] = {}
    for method, status, reason in ranking.missing:
        found.setdefault(f"{status}, {reason}" if reason else status, []).append(method)
    return found


def _plain(ranking: CallRanking, also: list[str]) -> dict[str, Any]:
    return {
        "finding": ranking.finding,
        "setting": ranking.setting,
        "devices": ranking.devices,
        "studies": ranking.studies,
        "studies_aside": also,
        "earlier": ranking.earlier,
        "num_cells": ranking.num_cells,
        "num_samples": ranking.num_samples,
        "methods": [
            {
                "method": method,
                "place": placed.place,
                "tied": placed.tied,
                "time_ms": placed.ms,
                "tflops_per_device": placed.tflops,
                "tflops_per_device_low": placed.low,
                "tflops_per_device_high": placed.high,
                "share_of_best": placed.share,
                "num_cells": placed.num_cells,
                "num_samples": placed.num_samples,
                "cell_id": placed.cell_id,
            }
            for method, placed in ranking.methods
        ],
        "missing": [
            {"method": method, "status": status, "reason": reason}
            for method, status, reason in ranking.missing
        ],
    }
