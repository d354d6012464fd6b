"""The command `longca choose`: the methods for one call, ranked from records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longca.lab.cli.options import (
    Json,
    NewTokens,
    Results,
    check_call,
    check_one_mask,
    line_width,
    mask_choice,
    only_given,
    print_command,
    print_filled,
    print_json,
    print_table,
)
from longca.lab.studies import USUAL_DTYPE, USUAL_HEAD_DIM, USUAL_HEADS, USUAL_SEQLEN

if TYPE_CHECKING:
    from longca.lab.report.choose import CallRanking


def command(
    context: typer.Context,
    mask: Annotated[
        str | None,
        typer.Argument(
            help="Mask, perhaps with parameters: causal, block_sparse_uniform:density=0.5", show_default=False
        ),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            show_default=False,
            help="A study, a folder of results, or files of records (.parquet, .json) [default: the records that come with the "  # noqa: E501
            "project]",
        ),
    ] = None,
    mask_option: Annotated[
        str | None,
        typer.Option("--mask", "-m", help="The mask, as `longca advise` takes it", show_default=False),
    ] = None,
    seqlen: Annotated[
        str, typer.Option("--seqlen", "--tokens", "-s", help="Tokens over all ranks")
    ] = USUAL_SEQLEN,
    new_tokens: NewTokens = None,
    heads: Annotated[str, typer.Option(help="Query and KV heads")] = USUAL_HEADS,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of one head")] = USUAL_HEAD_DIM,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32")] = USUAL_DTYPE,
    direction: Annotated[
        str,
        typer.Option(
            "--direction", "-d", help="fwd, bwd, both (each by itself) or fwd+bwd (their sum, as in training)"
        ),
    ] = "both",
    world: Annotated[
        int,
        typer.Option("--world", "--gpus", "-w", min=1, help="Ranks of context parallelism; 1 for one device"),
    ] = 1,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Where document lengths come from  [default: the usual one of that length, if it "
            "was measured: pile, above 12K tokens prolong64k]",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="Only records of this GPU: h100  [default: all GPUs]", show_default=False)
    ] = "",
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Only methods whose gradients have the same bits in every run; backward"
        ),
    ] = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Rank kernels for a mask, from records.

    Ties follow from repeats of identical cells. Each GPU and direction is ranked by itself. Without RUN the
    answer is that of one study, the one that measured the most methods; studies that are given are put
    together. Where no record fits, the nearest settings are named and the exit code is 2; `longca advise`
    predicts such calls.
    """
    from longca.core import UserError, parse_heads, unknown
    from longca.lab.cli.records import columns_of_runs
    from longca.lab.report.choose import COLUMNS
    from longca.lab.report.decide import DIRECTIONS, WORDS, answer, question_of, refuse_second_mask

    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    given = only_given(context)
    check_call(seqlen, heads, head_dim, dtype, new_tokens)
    if mask_option is not None:  # then all arguments are runs
        check_one_mask(mask, mask_option)
        mask, runs = mask_option, [*([mask] if mask else []), *(runs or [])]
    if mask is None:
        raise UserError(
            "No mask is given", todo="Name one, as in `longca choose causal`; `longca list masks` has all"
        )
    choice = mask_choice(mask)
    ((name, params),) = ({choice: {}} if isinstance(choice, str) else choice).items()
    refuse_second_mask(mask, runs or [])
    num_q_heads, num_kv_heads = parse_heads(heads)
    question = question_of(
        name,
        seqlen=given("seqlen", seqlen),
        num_q_heads=given("heads", num_q_heads),
        num_kv_heads=given("heads", num_kv_heads),
        head_dim=given("head_dim", head_dim),
        dtype=given("dtype", dtype),
        gpus=given("world", world),
        corpus=corpus,
        deterministic=deterministic,
        params=params,
        new_tokens=new_tokens,
    )
    table, problems = columns_of_runs(runs or [], results, COLUMNS)
    found = answer(
        table, question, given("direction", direction), gpu=gpu, together=bool(runs), problems=problems
    )
    if as_json:
        print_json(found.to_dict())
        return
    for ranking, also in zip(found.rankings, found.aside, strict=True):
        _print(ranking, also)
    for text in found.unanswered:
        print_filled(f"No record has {text}.")
    for problem in problems:
        print(f"skipped {problem}")
    if found.defaults:
        print_filled(f"Not given: {found.not_given}.")
    for each, predicts in found.see_also.items():
        alike = [ranking for ranking in found.rankings if ranking.direction == each]
        if alike and all(ranking.asks_draws for ranking in alike):
            continue  # each of them has named the command of its own GPU
        which = f", {WORDS[each]}" if len(found.see_also) > 1 else ""
        print_command(f"By prediction{which}:", predicts)


def _print(ranking: CallRanking, also: tuple[str, ...]) -> None:
    import textwrap

    from longca.lab.ranking.sentences import WITH_RESTS, place_text
    from longca.lab.report.content.earlier import earlier_text
    from longca.lab.report.series import rate_unit
    from longca.lab.store.text import number, plural

    width = line_width()
    print_filled(f"{' and '.join(ranking.devices)}: {ranking.finding}")
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
                "" if placed.is_alone else place_text(placed.share, placed.place, placed.tied),
                placed.num_samples,
            ]
            for method, placed in ranking.methods
        ],
    )
    if ranking.is_drawn:
        print_filled(ranking.draws_text)
        if ranking.asks_draws:
            print_command("By prediction over draws:", ranking.over_draws)
    for reason, methods in _by_reason(ranking).items():
        print(textwrap.fill(f"{', '.join(methods)}: {reason}", width, subsequent_indent="  "))
    if ranking.earlier:
        print(textwrap.fill(earlier_text(ranking.earlier), width, subsequent_indent="  "))
    seeds = (
        f", {'seed' if len(ranking.seeds) == 1 else 'seeds'} {', '.join(map(str, ranking.seeds))}"
        if ranking.corpora
        else ""
    )
    amount = (
        f"n = {plural(ranking.num_cells, 'cell')}, {plural(ranking.num_samples, 'sample')}{seeds}, calls "
        f"{WITH_RESTS[ranking.rests]} of the GPU"
    )
    together = ", put together" if len(ranking.studies) > 1 else ""
    others = (
        f"; {' and '.join(also)} measured some of them, too, and stand{'s' if len(also) == 1 else ''} aside"
        if also
        else ""
    )
    print_filled(f"{amount}; records of {', '.join(ranking.studies)}{together}{others}")
    print()


def _by_reason(ranking: CallRanking) -> dict[str, list[str]]:
    """Why some have no number → their names."""
    reasons: dict[str, list[str]] = {}
    for method, status, reason in ranking.missing:
        reasons.setdefault(f"{status}, {reason}" if reason else status, []).append(method)
    return reasons
