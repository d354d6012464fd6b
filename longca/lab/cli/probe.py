"""The command `longca probe`: a minute of measuring, and the profile for `longca advise` that follows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.lab.cli.options import Json, print_json, print_table

if TYPE_CHECKING:
    from longca.lab.bench import ProbeResult

WIDTH = 80
TIMEOUT_S = 120.0


def command(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to measure, about")] = 60.0,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Ranks on this machine; under torchrun those that it starts  [default: all GPUs, else 2]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    out: Annotated[Path, typer.Option(help="File to write the profile to")] = Path("probe.yaml"),
    as_json: Json = False,
) -> None:
    """Measure this machine's messages and kernels for advice.

    `longca advise --profile probe.yaml` takes what it writes. Two ranks or more measure messages by size, by
    every way that works here, and what they cost a kernel beside them; each GPU measures kernels that have
    records. One GPU gives the kernels' part alone. Where others use the machine meanwhile, it says so, and
    intervals get wider.
    """
    from longca.core import UserError, unknown
    from longca.lab.bench import run_on_ranks

    if device not in ("auto", "cpu", "cuda"):
        raise unknown("device", device, ("auto", "cpu", "cuda"))
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UserError(
            f"Cannot write '{out}'",
            why="it is a folder" if out.is_dir() else "its folder is not there",
            todo="Give a file",
        )
    result = run_on_ranks(seconds, ranks, device, TIMEOUT_S)
    if result is None:  # another rank under torchrun tells
        return
    content = _write(result, out)
    if as_json:
        print_json(content)
    else:
        _print(result, content, out)


def _write(result: ProbeResult, out: Path) -> dict[str, Any]:
    import yaml

    from longca.lab.bench import networks_of
    from longca.lab.store import replace_file

    content = {"networks": networks_of(result)}
    replace_file(out, yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True).encode())
    return content


def _print(result: ProbeResult, content: dict[str, Any], out: Path) -> None:
    import textwrap

    from longca.lab.store.text import format_bytes, number, percent

    def say(text: str) -> None:
        print(textwrap.fill(text, WIDTH))

    for scope, timed in (("within a node", result.intra), ("between nodes", result.inter)):
        rows = [
            [
                way,
                format_bytes(message.num_bytes),
                number(message.seconds * 1e3),
                number(message.num_bytes / message.seconds / 1e9),
                percent(message.spread),
                "" if message.beside is None else percent(message.beside),
            ]
            for way, messages in timed.items()
            for message in messages
        ]
        if rows:
            print_table(
                f"Messages {scope}, {result.world} ranks",
                ["by", "size", "ms", "GB/s", "spread", "beside a product"],
                rows,
            )
    if result.kernels:
        print_table(
            "Kernels",
            ["kernel", "", "mask", "ms", "predicted", "ratio"],
            [
                [
                    kernel.kernel,
                    kernel.direction,
                    f"{kernel.mask} {kernel.seqlen // 1024}K",
                    number(kernel.seconds * 1e3),
                    number(kernel.predicted_s * 1e3),
                    number(kernel.ratio),
                ]
                for kernel in result.kernels
            ],
        )
    for network in content["networks"]:
        inter = (
            f", {network['inter_us']['value']:g} µs and {network['inter_gb_s']['value']:g} GB/s between nodes"
            if result.inter
            else ""
        )
        say(
            f"{network['name']}: {network['intra_us']['value']:g} µs and "
            f"{network['intra_gb_s']['value']:g} GB/s within a node{inter}."
        )
    for note in result.notes:
        say(f"Left out: {note}.")
    if result.disturbance:
        say(f"This machine was busy: {result.disturbance}.")
    if result.wider > 1:
        say(f"Intervals are {result.wider:g} times as wide.")
    say(f"Written to {out}. Use it: longca advise --profile {out}")
