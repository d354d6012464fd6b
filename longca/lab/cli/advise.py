"""The command `longca advise`: the ways to run one attention call, ranked by predicted time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.lab.cli.options import Json, mask_choice, print_json, print_table

if TYPE_CHECKING:
    from longca.lab.advice.ranking import Advice
    from longca.predict.fitted import FittedKernels

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
WIDTH = 80


def command(
    mask: Annotated[
        str,
        typer.Option("--mask", "-m", help="Mask, perhaps with parameters: causal, sliding_window:window=512"),
    ] = "causal",
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Where document lengths come from, for masks with documents  [default: pile]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is drawn in the mask")] = 0,
    tokens: Annotated[str, typer.Option("--tokens", "-s", help="Tokens of the whole sequence")] = "32K",
    gpus: Annotated[
        int, typer.Option("--gpus", "-w", help="GPUs over which it is divided; 1 ranks kernels")
    ] = 1,
    heads: Annotated[str, typer.Option(help="Query and KV heads")] = "64:8",
    head_dim: Annotated[int, typer.Option(min=1, help="Size of one head")] = 128,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32")] = "bf16",
    direction: Annotated[str, typer.Option("--direction", "-d", help="fwd, bwd or both")] = "both",
    node: Annotated[
        int | None, typer.Option(help="GPUs of a node  [default: as in the profile]", show_default=False)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Messages, by a name in config/hardware.yaml or a file of `longca probe`  [default: "
            "h200-copy-engines]",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Model of GPU in config/hardware.yaml  [default: that of the profile]", show_default=False
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of a GPU that may be used, such as 60G  [default: all]", show_default=False
        ),
    ] = None,
    kernel: Annotated[
        str, typer.Option("--kernel", "-k", help="Only these kernels: band,fa3", show_default=False)
    ] = "",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            "-c",
            help="Only these strategies; those in the style of the study, too",
            show_default=False,
        ),
    ] = "",
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Fit kernels on these records (.parquet, .json, a folder of results) instead "
            "of the project's",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Options to show")] = 10,
    study: Annotated[
        Path | None,
        typer.Option(help="Write a study that measures the first three to this file", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank strategies, meshes and kernels by predicted time.

    Runs nothing and needs no GPU. Kernels are fitted on records, messages follow a profile. Each number has
    an interval, and what it assumes beyond the records is named.
    """
    from longca.core.errors import UserError
    from longca.core.plugin import Registry
    from longca.core.units import parse_heads, parse_length
    from longca.lab.advice.ranking import advise
    from longca.masks.build import build_mask

    choice = mask_choice(mask)
    ((name, params),) = ({choice: {}} if isinstance(choice, str) else choice).items()
    pattern = Registry("mask").load(name)
    try:
        (num_q_heads, num_kv_heads), seqlen = parse_heads(heads), parse_length(tokens)
    except ValueError as error:
        raise UserError(str(error)) from None
    built = build_mask(
        name,
        seqlen=seqlen,
        corpus=corpus if pattern.uses_documents else None,
        seed=seed,
        num_kv_heads=num_kv_heads,
        **params,
    )
    fitted, problems = _fitted(records)
    found = advise(
        built,
        gpus=gpus,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        direction=direction,
        profile=profile,
        gpu=gpu,
        memory_bytes=_bytes(memory),
        ranks_per_node=node,
        kernels=_names(kernel),
        strategies=_names(strategy),
        fitted=fitted,
    )
    for problem in problems:  # after all that can be refused, whose message is one line
        print(f"skipped {problem}", file=sys.stderr)
    if study is not None:
        _write(found, study, params, (corpus or "pile") if pattern.uses_documents else None, seed)
    if as_json:
        print_json(found.to_dict() | {"check": _check(found, study)})
    else:
        _print(found, top, study)


def _bytes(text: str | None) -> float | None:
    """ "60G" → 60e9. Raises UserError."""
    from longca.core.errors import UserError

    if text is None:
        return None
    value, unit = text.strip().upper().removesuffix("B"), ""
    if value[-1:] in UNITS:
        value, unit = value[:-1], value[-1:]
    try:
        found = float(value) * UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UserError(f"'{text}' is no amount of memory", todo="Write a number of bytes such as 60G")
    return found


def _names(text: str) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] or None


def _fitted(records: list[Path] | None) -> tuple[FittedKernels | None, list[str]]:
    """The models of these records, and what is wrong with some of them."""
    if not records:
        return None, []
    from longca.core.errors import UserError
    from longca.lab.store.load import load
    from longca.predict.fitted import fit_records

    loaded = load(*records)
    if loaded.problems and not loaded.records:
        raise UserError(
            f"There are no records in '{', '.join(map(str, records))}'", why=str(loaded.problems[0])
        )
    return fit_records(loaded.records, tuple(map(str, records))), [
        str(problem) for problem in loaded.problems
    ]


def _write(found: Advice, path: Path, params: dict[str, Any], corpus: str | None, seed: int) -> None:
    import yaml

    content = found.study()
    name = found.question.mask.name
    for grid in content["grids"]:
        grid["mask"] = [{name: params} if params else name]
        if corpus is not None:
            grid["corpus"] = corpus
        if seed:
            grid["seed"] = seed
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _check(found: Advice, study: Path | None) -> str:
    """The command that measures the first options."""
    gpus, per_node = found.question.gpus, found.question.network.ranks_per_node
    file = study or Path("check.yaml")
    if gpus <= per_node:
        return f"longca run {file}"
    return (
        f"torchrun --nnodes {-(-gpus // per_node)} --nproc-per-node {min(per_node, gpus)} -m longca run "
        f"{file}"
    )


def _print(found: Advice, top: int, study: Path | None) -> None:
    import textwrap

    from longca.lab.store.text import format_bytes, number, percent

    question = found.question
    print(textwrap.fill(found.finding, WIDTH))
    several = question.gpus > 1
    shown = found.options[:top]
    words = " and ".join({"fwd": "forward", "bwd": "backward"}[way] for way in question.directions)
    where = f"{question.gpus} × {question.gpu.name}" if several else f"one {question.gpu.name}"
    print_table(
        f"{question.mask.name}, {where}, {words}; rate in TFLOP/s a GPU",
        ["method", "ms", "90 %", "rate", "memory", "limited by"],
        [
            [
                option.candidate.title,
                number(option.prediction.seconds * 1e3),
                f"{number(option.low_s * 1e3)}–{number(option.high_s * 1e3)}",
                number(option.tflops),
                format_bytes(option.prediction.memory_bytes) + ("" if option.fits else ", too much"),
                option.prediction.limit.replace(", ", " ").replace(" %", "%"),
            ]
            for option in shown
        ],
    )
    if several:
        print_table(
            f"Messages by {question.network.name}",
            ["method", "sent", "off node", "exposed", "imbalance", "calls"],
            [
                [
                    option.candidate.title,
                    format_bytes(made.sent_bytes),
                    format_bytes(made.inter_node_bytes) if made.inter_node_bytes else "–",
                    percent(made.exposed),
                    percent(made.imbalance),
                    made.num_calls,
                ]
                for option in shown
                for made in [option.prediction]
            ],
        )
    if several:
        print(textwrap.fill(f"The first is {found.best.candidate.how}.", WIDTH))
    for change in found.changes:
        print(textwrap.fill(f"It would change: {change}.", WIDTH))
    for assumption in found.assumptions:
        print(textwrap.fill(f"Assumed: {assumption}.", WIDTH))
    left = len(found.options) - len(shown)
    if left > 0 or found.refused:
        print(
            textwrap.fill(
                f"{left} more with --top {len(found.options)}; {len(found.refused)} cannot run it (--json "
                f"says why).",
                WIDTH,
            )
        )
    step = "" if study is not None else " write it with --study check.yaml, then"
    check = _check(found, study)
    gap = " " if len(f"To check:{step} {check}") <= WIDTH else "\n  "  # a command stays whole
    print(f"To check:{step}{gap}{check}")
