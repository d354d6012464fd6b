"""The command `longca bench`: a kernel in a file of its own, checked and timed beside others."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.lab.cli.options import (
    Json,
    NewTokens,
    Wait,
    check_call,
    line_width,
    mask_choice,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from longca.lab.bench import OwnFileResult, OwnFileRun
    from longca.lab.ranking import RankedMethod, Standing
    from longca.lab.studies import Accuracy, Cell, Record

BASELINE = "sdpa"  # what the kernel is compared with beside the best, since everybody has it
DEFAULTS = {
    "cuda": {"seqlen": "8K", "heads": "64:8", "head_dim": 128, "dtype": "bf16"},
    "cpu": {"seqlen": "1K", "heads": "8:2", "head_dim": 64, "dtype": "fp32"},
}
CHECKS = ("sample", "all")
WAIT_SECONDS = 600.0  # for another run: who is at a terminal would rather know
DIRECTIONS = {"fwd": ["fwd"], "bwd": ["bwd"], "both": ["fwd", "bwd"]}
WORDS = {"fwd": "forward", "bwd": "backward"}


def command(
    file: Annotated[Path, typer.Argument(help="Python file with forward(q, k, v, mask)", show_default=False)],
    mask: Annotated[
        list[str] | None,
        typer.Option(
            "--mask",
            "-m",
            help="Mask, perhaps with parameters: causal, sliding_window:window=512; "
            "more than once for several  [default: causal]",
            show_default=False,
        ),
    ] = None,
    seqlen: Annotated[
        str,
        typer.Option("--seqlen", "-s", help="Tokens  [default: 8K on a GPU, else 1K]", show_default=False),
    ] = "",
    new_tokens: NewTokens = None,
    heads: Annotated[
        str, typer.Option(help="Query and KV heads  [default: 64:8 on a GPU, else 8:2]", show_default=False)
    ] = "",
    head_dim: Annotated[
        int | None,
        typer.Option(help="Size of one head  [default: 128 on a GPU, else 64]", show_default=False),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bf16, fp16 or fp32  [default: bf16 on a GPU, else fp32]", show_default=False)
    ] = "",
    direction: Annotated[str, typer.Option("--direction", "-d", help="fwd, bwd or both")] = "fwd",
    rivals: Annotated[
        str,
        typer.Option(
            help="Kernels to time beside it: 'sdpa,flex'; none for none  [default: all that run here]",
            show_default=False,
        ),
    ] = "",
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda", show_default=False)] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Timed calls at least")] = 10,
    check: Annotated[
        str,
        typer.Option(
            help="How much of the result is compared with float64: sample (as much as takes about a second) "
            "or all"
        ),
    ] = "sample",
    check_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of what is drawn for the check; a record names it  [default: drawn]",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a kernel is stopped")] = 120.0,
    wait: Wait = WAIT_SECONDS,
    as_json: Json = False,
) -> None:
    """Check and time a kernel in a file of its own.

    Nothing is registered. The file defines forward(q, k, v, mask). It is compared with a float64 reference,
    before it is timed and in timed calls; a wrong result has no speed. Exit code 0: what it can run is right;
    1: it is wrong, too fast to be true, raises, hangs or dies; 2: it can run none of these calls here, or the
    command is wrong.
    """
    from longca.core import unknown
    from longca.lab.bench import compare_own_file
    from longca.lab.studies import Measure, load_config

    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    if check not in CHECKS:
        raise unknown("check", check, CHECKS)
    chosen = load_config({"device": device}).device
    usual = DEFAULTS[_device_type() if chosen == "auto" else chosen]
    grid = {
        "mask": [mask_choice(text) for text in mask or ["causal"]],
        "seqlen": seqlen or usual["seqlen"],
        **({} if new_tokens is None else {"new_tokens": new_tokens}),
        "heads": heads or usual["heads"],
        "head_dim": usual["head_dim"] if head_dim is None else head_dim,
        "dtype": dtype or usual["dtype"],
        "direction": DIRECTIONS[direction],
    }
    _check(grid)
    run = compare_own_file(
        file,
        grid,
        Measure(repeats=repeats, max_seconds=2, timeout_s=timeout, check=check),
        rivals=_names(rivals),
        device=chosen,
        seed=check_seed,
        announce=_announce,
        wait_s=wait,
    )
    _announce("")
    if as_json:
        print_json(
            {
                "kernel": run.kernel,
                "device": run.device,
                "results": [_plain(run, result) for result in run.results],
            }
        )
    else:
        _print(run)
    if run.exit_code:
        raise typer.Exit(run.exit_code)


def _check(grid: dict[str, Any]) -> None:
    """Refuse options in their own words; those of a study would name the study's keys. Raises UserError."""
    from longca.core import Registry

    for mask in grid["mask"]:
        ((name, given),) = ({mask: {}} if isinstance(mask, str) else mask).items()
        Registry("mask").load(name).resolve(given)
    check_call(grid["seqlen"], grid["heads"], grid["head_dim"], grid["dtype"], grid.get("new_tokens"))


def _device_type() -> str:
    from longca.lab.cli.list import device_type

    return device_type()


def _names(rivals: str) -> list[str] | None:
    from longca.core import Registry, unknown

    if not rivals:
        return None
    names = [name.strip() for name in rivals.split(",") if name.strip()]
    if names == ["none"]:
        return []
    known = Registry("kernel").names()
    for name in names:
        if name not in known:
            raise unknown("kernel", name, known)
    return names


def _announce(title: str) -> None:
    """Show on a terminal what is measured now; the next title replaces it."""
    import shutil
    import sys

    from longca.core import shown
    from longca.lab.cli.terminal import styled_errors

    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        text = shown(f"measuring {title}") if title else ""
        print(f"\r{text:<{width}.{width}}", end="\r" if not title else "", file=styled_errors(), flush=True)


def _print(run: OwnFileRun) -> None:
    """Conclusions first, one for each cell; then what belongs to them."""
    from longca.core import format_length

    several = len(run.results) > 1
    for result in run.results:
        cell = result.own.cell
        conclusion, *details = _finding(run, result).split("\n")
        print(
            textwrap.fill(f"{_case(cell) if several else ''}{conclusion}", line_width()), *details, sep="\n"
        )
    first = run.results[0].own.cell
    new = f", {format_length(first.num_queries)} of them new" if first.new_tokens else ""
    print(
        f"{run.device} · {format_length(first.seqlen)} tokens{new} · "
        f"{first.num_q_heads}:{first.num_kv_heads} heads · head dim {first.head_dim} · {first.dtype}"
    )
    for result in run.results:
        cell = result.own.cell
        if result.is_right and result.own.accuracy is not None:
            print(
                textwrap.fill(
                    f"{_case(cell) if several else ''}{_checked(result.own.accuracy)}", line_width()
                )
            )
            _print_times(result)
        for row in result.wrong_rows:
            print(
                textwrap.fill(
                    f"{_case(cell) if several else ''}{row.tensor}: {row}",
                    line_width(),
                    subsequent_indent="  ",
                )
            )
        for rival in result.rivals:
            if rival.outcome.status != "ok":
                print(f"{rival.cell.kernel}: {rival.outcome.status}, {_view(rival).reason}")
        if (
            result.own.outcome.status == "error"
            and not result.place
            and result.own.outcome.type != "ResultError"
        ):
            print(result.own.outcome.log)
    if run.logs is not None:
        print(f"Output of the measuring processes: {run.logs}")


def _case(cell: Cell) -> str:
    return f"{cell.mask} {WORDS[cell.direction]}: "


def _print_times(result: OwnFileResult) -> None:
    """The file's kernel first, then its rivals, the fastest first."""
    from longca.lab.report.series import rate_unit

    case = _standing(result)
    cell = result.own.cell
    unit = rate_unit(case.first.rate)
    rivals = {rival.cell.kernel: rival for rival in result.rivals}
    ran = [rivals[entry.method] for entry in case.entries if entry.method in rivals]
    print()
    print_table(
        f"{cell.mask}, {WORDS[cell.direction]}",
        ["kernel", "ms", unit.name, "of best", "error / budget"],
        [_row(record, case, unit.factor) for record in (result.own, *ran)],
    )


def _finding(run: OwnFileRun, result: OwnFileResult) -> str:
    """ "k is right, 1.32× sdpa, 0.81× the best (flex)", or what is wrong with it."""
    from longca.lab.store.text import names, number

    outcome = result.own.outcome
    if outcome.status == "incorrect":
        return f"{run.kernel} is wrong: {outcome.reason}"
    if outcome.status != "ok":
        words = {
            "error": "failed",
            "timeout": "hangs",
            "oom": "failed",
            "implausible": "is too fast to be true",
            "unsupported": "does not support this call",
            "unavailable": "cannot run here",
        }
        what = words.get(outcome.status, outcome.status)
        origin = f"\n  {result.place}" if result.place else ""
        return f"{run.kernel} {what}: {_view(result.own).reason}{origin}"
    case = _standing(result)
    own = _entry(case, run.kernel)
    right = (
        "is right"
        if result.own.accuracy is None or result.own.accuracy.scope == "all"
        else "is right where it was checked"
    )
    others = [entry for entry in case.entries if entry.method != run.kernel]
    if not others:
        return f"{run.kernel} {right}: {number(_view(result.own).median_ms)} ms; no rival ran beside it"
    rates = {entry.method: entry.rate for entry in others}
    parts = [f"{number(own.rate / rates[BASELINE])}× {BASELINE}"] if BASELINE in rates else []
    best = others[0].method
    is_tied = run.kernel in case.leaders and len(case.leaders) > 1
    if own.place == 1:
        second = f"{number(own.rate / rates[best])}× {best}" if best != BASELINE else ""
        facts = ", ".join(
            filter(None, (second, f"not told apart from {names(case.leaders[1:])}" if is_tied else ""))
        )
        parts.append(
            f"{'in front' if is_tied else 'the fastest'} of {len(case.entries)}"
            + (f" ({facts})" if facts else "")
        )
    elif is_tied:
        parts.append(f"not told apart from the best ({best})")
    elif best != BASELINE or not parts:
        parts.append(f"{number(own.share)}× the best ({best})")
    else:
        parts[0] += ", which is the best"
    return f"{run.kernel} {right}, {', '.join(parts)}"


def _checked(accuracy: Accuracy) -> str:
    """ "checked: all, and 2 timed calls in part (--check-seed 5)"."""
    from longca.lab.store.text import plural

    timed = f", and {plural(accuracy.timed_calls, 'timed call')} in part" if accuracy.timed_calls else ""
    bits = f"; the same bits in {accuracy.bit_runs} backward calls" if accuracy.deterministic else ""
    return f"checked: {accuracy.scope}{timed}{bits}" + (
        f" (--check-seed {accuracy.seed})" if accuracy.seed is not None else ""
    )


def _standing(result: OwnFileResult) -> Standing:
    """The measured cells, ranked as on pages."""
    from longca.lab.ranking.table import standings
    from longca.lab.store.table import derived

    (case,) = standings(derived([result.own, *result.rivals])).values()
    return case


def _entry(case: Standing, kernel: str) -> RankedMethod:
    entry = case.entry(kernel)
    assert entry
    return entry


def _row(record: Record, case: Standing, factor: float) -> list[Any]:
    from longca.lab.store.text import number, percent

    view = _view(record)
    entry = _entry(case, record.cell.kernel)
    tied = " (tie)" if entry.is_tied else ""
    return [
        entry.method,
        number(view.median_ms),
        number(factor * entry.rate),
        f"{percent(entry.share, 3)}{tied}",
        view.error_text,
    ]


def _plain(run: OwnFileRun, result: OwnFileResult) -> dict[str, Any]:
    """One cell as data: the finding, and the records."""
    return {
        "finding": _finding(run, result),
        "is_right": result.is_right,
        "place": result.place or None,
        "wrong_rows": [row.model_dump() for row in result.wrong_rows],
        "logs": run.logs,
        "record": result.own.model_dump(mode="json"),
        "rivals": [rival.model_dump(mode="json") for rival in result.rivals],
    }


def _view(record: Record) -> Any:
    from longca.core import Hardware
    from longca.lab.store import View

    return View(record, Hardware())
