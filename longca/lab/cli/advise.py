"""The command `longca advise`: the ways to run one attention call, ranked by predicted time."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.core import format_length as format_tokens
from longca.lab.cli.options import (
    Json,
    NewTokens,
    check_call,
    check_one_mask,
    mask_choice,
    only_given,
    print_command,
    print_filled,
    print_json,
    print_table,
)
from longca.lab.studies import DRAWS, USUAL_DTYPE, USUAL_HEAD_DIM, USUAL_HEADS, USUAL_SEQLEN, usual_corpus

if TYPE_CHECKING:
    from longca.lab.advice import Advice
    from longca.predict.fitted import FittedKernels

LEAST_BYTES = 1e6  # of a GPU: less is a number whose unit was left out
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def command(
    context: typer.Context,
    mask_argument: Annotated[
        str | None,
        typer.Argument(metavar="MASK", help="The mask, as `longca choose` takes it", show_default=False),
    ] = None,
    mask: Annotated[
        str,
        typer.Option("--mask", "-m", help="Mask, perhaps with parameters: causal, sliding_window:window=512"),
    ] = "causal",
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Where document lengths come from, for masks with documents  [default: pile, above 12K "
            "tokens prolong64k]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first draw, for masks that are drawn")] = 0,
    draws: Annotated[
        int, typer.Option(min=1, help="Sequences that are drawn and predicted, for masks that are drawn")
    ] = DRAWS,
    tokens: Annotated[
        str, typer.Option("--tokens", "--seqlen", "-s", help="Tokens of the whole sequence")
    ] = USUAL_SEQLEN,
    new_tokens: NewTokens = None,
    gpus: Annotated[
        int, typer.Option("--gpus", "--world", "-w", help="GPUs over which it is divided; 1 ranks kernels")
    ] = 1,
    heads: Annotated[str, typer.Option(help="Query and KV heads")] = USUAL_HEADS,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of one head")] = USUAL_HEAD_DIM,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32")] = USUAL_DTYPE,
    direction: Annotated[
        str, typer.Option("--direction", "-d", help="fwd, bwd, or both: the sum, also as fwd+bwd")
    ] = "both",
    node: Annotated[
        int | None, typer.Option(help="GPUs of a node  [default: as in the profile]", show_default=False)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Messages, by a name in config/hardware.yaml or a file of `longca probe`  [default: that of "
            "the GPU, beyond one node one between nodes; without a GPU h200-copy-engines or h200-nccl]",
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
            help="Only these strategies, perhaps with a kernel: usp,ring_p2p+fa3; those in the style of the "
            "study, too",
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
    an interval, and what it assumes beyond the records is named. Masks that are drawn are predicted in
    several draws. `longca choose` answers from records alone.
    """
    from longca.core import Registry, parse_heads
    from longca.lab.advice import advise

    given = only_given(context)
    if given("mask", mask) is not None:
        check_one_mask(mask_argument, mask)
    mask = mask_argument or mask
    choice = mask_choice(mask)
    ((name, params),) = ({choice: {}} if isinstance(choice, str) else choice).items()
    Registry("mask").load(name).resolve(params)  # refuses what is no parameter, such as another option's name
    check_call(tokens, heads, head_dim, dtype, new_tokens)
    num_q_heads, num_kv_heads = parse_heads(heads)
    fitted, problems = _fitted(records)
    advice = advise(
        name,
        gpus=given("gpus", gpus),
        seqlen=given("tokens", tokens),
        corpus=corpus,
        new_tokens=new_tokens,
        seed=given("seed", seed),
        num_q_heads=given("heads", num_q_heads),
        num_kv_heads=given("heads", num_kv_heads),
        head_dim=given("head_dim", head_dim),
        dtype=given("dtype", dtype),
        direction=given("direction", direction),
        profile=profile,
        gpu=gpu,
        memory_bytes=_bytes(memory),
        ranks_per_node=node,
        kernels=_names(kernel),
        strategies=_names(strategy),
        fitted=fitted,
        draws=given("draws", draws),
        **params,
    )
    if mask_argument is None and given("mask", mask) is None:
        advice = replace(advice, defaults={"mask": name, **advice.defaults})
    for problem in problems:  # after all that can be refused, whose message is one line
        print(f"skipped {problem}", file=sys.stderr)
    if study is not None:
        study.write_text(_yaml(advice.study()), encoding="utf-8")
    see_also = _choose(advice, gpu)
    if as_json:
        print_json(advice.to_dict() | {"check": _check(advice, study), "see_also": see_also})
    else:
        _print(advice, top, study, see_also)


def _choose(advice: Advice, gpu: str | None) -> str:
    """The command that answers the same question from records."""
    from longca.core import Registry

    question = advice.question
    call = advice.question.call
    usual_params = Registry("mask").load(question.mask.name).resolve({})
    params = ",".join(
        f"{key}={value}" for key, value in question.mask_params.items() if value != usual_params[key]
    )
    mask = f"{question.mask.name}:{params}" if params else question.mask.name
    # advice about both is about their sum, which `longca choose` ranks under that name
    direction = question.directions[0] if len(question.directions) == 1 else "fwd+bwd"
    seqlen = question.mask.seqlen_k
    options = {
        "-s": (format_tokens(seqlen), USUAL_SEQLEN),
        "--new-tokens": (format_tokens(question.mask.seqlen_q), format_tokens(seqlen)),
        "--heads": (f"{call.num_q_heads}:{call.num_kv_heads}", USUAL_HEADS),
        "--head-dim": (str(call.head_dim), str(USUAL_HEAD_DIM)),
        "--dtype": (call.dtype, USUAL_DTYPE),
        "-w": (str(question.gpus), "1"),
        "-d": (direction, ""),
        "--gpu": (shlex.quote(gpu) if gpu else None, None),
        "--corpus": (question.corpus, usual_corpus(seqlen) if question.corpus else None),
    }
    given = (f"{option} {value}" for option, (value, usual) in options.items() if value != usual)
    return " ".join(["longca choose", mask, *given])


def _bytes(text: str | None) -> float | None:
    """ "60G" → 60e9. Raises UserError."""
    from longca.core import UserError

    if text is None:
        return None
    value = text.strip().upper().removesuffix("B")
    unit = ""
    if value[-1:] in UNITS:
        value, unit = value[:-1], value[-1:]
    try:
        size = float(value) * UNITS[unit]
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise UserError(f"'{text}' is no amount of memory", todo="Write a number of bytes such as 60G")
    if size < LEAST_BYTES:
        raise UserError(f"'{text}' is {size:g} bytes of memory", todo="Write the unit, as in 60G")
    return size


def _names(text: str) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] or None


def _fitted(records: list[Path] | None) -> tuple[FittedKernels | None, list[str]]:
    """The models of these records, and what is wrong with some of them."""
    if not records:
        return None, []
    from longca.lab.advice import fit_sources

    fitted, problems = fit_sources(records)
    return fitted, [str(problem) for problem in problems]


def _yaml(content: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(content, sort_keys=False))


def _check(advice: Advice, study: Path | None) -> str:
    """The command that measures the first options."""
    from longca.lab.studies import layout

    gpus = advice.question.gpus
    per_node = advice.question.network.ranks_per_node
    file = study or Path("check.yaml")
    if gpus <= per_node:
        return f"longca run {file}"
    nodes, ranks = layout(gpus, per_node)
    return f"torchrun --nnodes {nodes} --nproc-per-node {ranks} -m longca run {file}"


def _print(advice: Advice, top: int, study: Path | None, see_also: str) -> None:
    from longca.lab.advice import idle_text
    from longca.lab.store.text import format_bytes, number, percent

    question = advice.question
    print_filled(advice.finding)
    several = question.gpus > 1
    drawn = len(advice.seeds) > 1
    shown = advice.options[:top]
    limits = not several  # else the table of messages has their share, and there is no room for both
    columns = [
        "method",
        "ms",
        "90 %",
        *(["first"] if drawn else []),
        "rate",
        "of best",
        "memory",
        *(["limited by"] if limits else []),
    ]
    rows = [
        [
            option.candidate.title,
            number(option.prediction.seconds * 1e3),
            f"{number(option.low_s * 1e3)}–{number(option.high_s * 1e3)}",
            *([f"{option.first_in}/{len(option.by_seed)}"] if drawn else []),
            number(option.tflops),
            option.share_text,
            format_bytes(option.prediction.memory_bytes) + ("" if option.fits else ", too much"),
            *([option.prediction.limit.replace(", ", " ")] if limits else []),
        ]
        for option in shown
    ]
    print_table(f"{question.setting}; rate in TFLOP/s a GPU", columns, rows)
    if several:
        print_table(
            f"Messages by {question.network.name}",
            ["method", "sent", "off node", "exposed", "imbalance", "calls"],
            [
                [
                    option.candidate.title,
                    format_bytes(made.sent_bytes),
                    format_bytes(made.inter_node_bytes) if made.inter_node_bytes else "–",
                    percent(round(made.exposed, 3)),
                    percent(round(made.imbalance, 3)),
                    made.num_calls,
                ]
                for option in shown
                for made in [option.prediction]
            ],
        )
    extrapolated: dict[str, list[str]] = {}
    for option in shown:
        if option.extrapolated:
            extrapolated.setdefault(option.extrapolated, []).append(option.candidate.title)
    if extrapolated:
        named = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in extrapolated.items())
        print_filled(f"Extrapolated, so that they count with the slow end of their interval: {named}.")
    if drawn:
        low, middle, high = (number(seconds * 1e3) for seconds in advice.best.quantiles.values())
        fewer = {len(option.by_seed) for option in shown} - {len(advice.seeds)}
        few = f"; one far behind in the first {min(fewer)} is predicted in these alone" if fewer else ""
        print_filled(
            f"Over draws, {advice.best.candidate.title} takes {low}, {middle} and {high} ms (10 %, half and "
            "90 % of draws). Times are means over draws; the column 90 % holds them all, and first says in "
            f"how many a method is the fastest{few}."
        )
    if several:
        seed = f" in seed {advice.seeds[0]}" if drawn else ""
        limit = advice.best.prediction.limit
        print_filled(f"The first is {advice.best.candidate.how}{seed}; limited by {limit}.")
        # the finding has said it of those in front
        behind = [option for option in shown[1:] if not (option.tied and option.fits)]
        if idle := idle_text(behind, question):
            print_filled(idle)
    for measured in advice.measured:
        print_filled(f"{measured}.")
    for change in advice.changes:
        print_filled(f"It would change: {change}.")
    for assumption in filter(None, (question.assumed_profile, *advice.assumptions)):
        print_filled(f"Assumed: {assumption}.")
    print_filled(f"Times are of {advice.protocol}.")
    if advice.defaults:
        print_filled(f"Not given: {advice.not_given}.")
    left = len(advice.options) - len(shown)
    if left > 0 or advice.refused:
        more = [f"{left} more with --top {len(advice.options)}"] * (left > 0)
        refused = [f"{len(advice.refused)} cannot run it (--json says why)"] * bool(advice.refused)
        print_filled(f"{'; '.join([*more, *refused])}.")
    step = "" if study is not None else " write it with --study check.yaml, then"
    for text, shown_command in (
        (f"To check:{step}", _check(advice, study)),
        ("From records alone:", see_also),
    ):
        print_command(text, shown_command)
