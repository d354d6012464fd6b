"""`longca.choose`: the methods for one call, ranked from records.

answer = longca.choose("causal", seqlen="32K", gpu="h100")
answer.best          # {"NVIDIA H100 80GB HBM3, forward": "cudnn", …}
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from longca.core import UserError, check_installed, unknown
from longca.lab.ranking.sentences import place_text
from longca.lab.report.choose import COLUMNS, CallQuestion, nearest_settings, rankings, rankings_by_study
from longca.lab.report.decide.call_question import question_of, refuse_second_mask
from longca.lab.report.decide.league import backward_only, proven_rows
from longca.lab.report.decide.totals import TOTAL
from longca.lab.studies import (
    DRAWS,
    USUAL_DTYPE,
    USUAL_HEAD_DIM,
    USUAL_HEADS,
    USUAL_SEQLEN,
    refuse_option_names,
    usual_corpus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from longca.lab.report.choose import CallRanking
    from longca.lab.report.decide.heat_map import Placed
    from longca.lab.store import UnusableFile
    from longca.masks import Mask

DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd"), TOTAL: (TOTAL,)}
MOST_ROWS = 4  # of a ranking, in a notebook


@dataclass(frozen=True, repr=False)
class Choice:
    """The rankings that answer a question, one for each GPU and direction."""

    question: CallQuestion
    """of the first direction"""
    rankings: tuple[CallRanking, ...]
    aside: tuple[tuple[str, ...], ...]
    """for each ranking, the studies that measured some of its methods too and are not put into it"""
    unanswered: tuple[str, ...] = ()
    """questions of other directions that no record answers"""
    problems: tuple[UnusableFile, ...] = ()
    """files that could not be read"""
    see_also: Mapping[str, str] = field(default_factory=dict)
    """by direction, the command that predicts the same"""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """by the name of the command's option or of the mask's parameter, the value of what was left out"""

    def __repr__(self) -> str:
        return f"<Choice: {self.finding}>"

    @property
    def not_given(self) -> str:
        """The settings that were left out, with the values taken: "heads 64:8, dtype bf16"."""
        return ", ".join(f"{name} {value}" for name, value in self.defaults.items())

    @property
    def finding(self) -> str:
        return " ".join(f"{ranking.place}: {ranking.finding}" for ranking in self.rankings)

    @property
    def best(self) -> dict[str, str]:
        """ "GPU, direction" → the fastest method."""
        return {ranking.place: ranking.methods[0][0] for ranking in self.rankings}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        both = zip(self.rankings, self.aside, strict=True)
        return {
            "rankings": [ranking.to_dict() | {"studies_aside": list(aside)} for ranking, aside in both],
            "unanswered": list(self.unanswered),
            "problems": [vars(problem) for problem in self.problems],
            "defaults": dict(self.defaults),
            "see_also": dict(self.see_also),
        }

    def _repr_html_(self) -> str:
        from longca.lab.store.text import number

        parts = []
        for ranking in self.rankings:
            rows = "".join(
                f"<tr><td>{escape(method)}</td><td>{number(placed.ms)}</td><td>{number(placed.tflops)}</td>"
                f"<td>{_share(placed)}</td></tr>"
                for method, placed in ranking.methods[:MOST_ROWS]
            )
            left = len(ranking.methods) - MOST_ROWS
            drawn = f"<p>{escape(ranking.draws_text)}</p>" if ranking.is_drawn else ""
            more = f"<p>{left} more in <code>rankings</code>.</p>" if left > 0 else ""
            parts.append(
                f"<p><b>{escape(f'{ranking.place}: {ranking.finding}')}</b></p><p>"
                f"{escape(ranking.setting)}</p><table><thead><tr>"
                f"<th>method</th><th>ms</th><th>TFLOP/s</th><th>of "
                f"best</th></tr></thead><tbody>{rows}</tbody></table>{more}{drawn}"
            )
        if self.defaults:
            parts.append(f"<p>Not given: {escape(self.not_given)}.</p>")
        return "".join(parts)


def choose(
    mask: Mask | str,
    *sources: str | Path,
    seqlen: int | str | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    direction: str | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    corpus: str | None = None,
    deterministic: bool = False,
    new_tokens: int | str | None = None,
    **params: Any,
) -> Choice:
    """Ranks the methods for an attention call from records. `longca.advise` predicts what no record has.

    Args:
        mask: a pattern's name, or a mask that `longca.build_mask` made.
        sources: as of `longca.load`; without any, the committed records, and of these one study for each
            answer.
        seqlen: tokens over all GPUs, as a number or "32K"; that of the mask, or 32K.
        num_q_heads, num_kv_heads: 64 and 8 if neither is given; as many KV heads as query heads if only these
            are.
        head_dim, dtype: 128 and bf16 if not given.
        direction: `fwd`, `bwd` or `both`, the default; each has a ranking of its own. `fwd+bwd` ranks the sum
            of both times, a training step's attention.
        gpus: ranks of context parallelism; 1, the default, for one device.
        gpu: only records of this model: "h100".
        corpus: of document lengths; the usual one for that length if it was measured.
        deterministic: only methods whose gradients were found to have the same bits in every run. Backward is
            ranked alone: forward has the same bits anyway.
        new_tokens: queries, which are the last tokens of a longer context, as a number or "1K"; those of the
            mask, or all tokens. Cells with a context are never ranked with others.
        params: of the pattern; others have their defaults if these were measured.

    Raises:
        UserError: an argument cannot be used, or no record answers: the message names the nearest settings.
    """
    check_installed("longca.choose", "pandas", "pyarrow")
    from longca.lab.store.frame import places_of
    from longca.lab.store.load import load_columns

    refuse_option_names(params)
    question = question_of(
        mask,
        seqlen=seqlen,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        gpus=gpus,
        corpus=corpus,
        deterministic=deterministic,
        params=params,
        new_tokens=new_tokens,
    )
    refuse_second_mask(question.mask, sources)
    table, problems = load_columns(places_of(*sources), COLUMNS)
    return answer(table, question, direction, gpu=gpu, together=bool(sources), problems=problems)


def answer(
    table: pd.DataFrame,
    question: CallQuestion,
    direction: str | None,
    *,
    gpu: str | None = None,
    together: bool = False,
    problems: Sequence[UnusableFile] = (),
) -> Choice:
    """The rankings of one question in one direction or both.

    Args:
        table: with COLUMNS.
        together: all studies of the table go into one ranking; otherwise the one that measured the most
            methods answers.

    Raises:
        UserError: no record answers.
    """
    is_given = direction is not None
    direction = "both" if direction is None else direction
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    repeats_of = table
    table = _on_gpu(table, gpu) if gpu else table
    if question.deterministic:
        direction = backward_only(direction)
        table = proven_rows(table)
    questions = [replace(question, direction=each) for each in DIRECTIONS[direction]]
    found: list[tuple[CallRanking, tuple[str, ...]]] = []
    unanswered = []
    for one in questions:
        rows = (
            [(ranking, ()) for ranking in rankings(table, one, repeats_of)]
            if together
            else rankings_by_study(table, one, repeats_of)
        )
        found += rows
        unanswered += [] if rows else [str(one)]
    if not found:
        raise _no_record(table, questions[0], direction, gpu)
    return Choice(
        questions[0],
        tuple(_with_command(ranking, questions[0]) for ranking, _ in found),
        tuple(aside for _, aside in found),
        tuple(unanswered),
        tuple(problems),
        {}
        if question.deterministic
        else {each: advise_command(question, each, gpu) for each in DIRECTIONS[direction]},
        _defaults(questions[0], [ranking for ranking, _ in found], is_given or question.deterministic),
    )


def _share(placed: Placed) -> str:
    return "" if placed.is_alone else place_text(placed.share, placed.place, placed.tied)


def _with_command(ranking: CallRanking, question: CallQuestion) -> CallRanking:
    """The ranking with the command that predicts over draws, on its own GPU and with its corpus."""
    from longca.core import load_hardware

    model = load_hardware().find(ranking.devices[0])
    if not ranking.is_drawn or model is None:
        return ranking
    corpus = ranking.corpora[0] if len(ranking.corpora) == 1 else None
    usual = usual_corpus(question.seqlen)
    asked = replace(question, corpus=None if corpus == usual else corpus)
    command = advise_command(asked, ranking.direction, model.name)
    return replace(ranking, over_draws=f"{command} --draws {DRAWS}")


def _defaults(question: CallQuestion, rankings: list[CallRanking], direction_given: bool) -> dict[str, str]:
    """The values taken for what was left out: those of the question, and those that its answers share."""
    taken = dict(question.defaults)
    if not direction_given:
        taken["direction"] = "fwd and bwd"
    corpora = {ranking.corpora for ranking in rankings}
    if question.corpus is None and len(corpora) == 1 and len(*corpora) == 1:
        taken["corpus"] = rankings[0].corpora[0]
    recorded = [
        dict(pair.split("=", 1) for pair in ranking.params.split(", ") if pair) for ranking in rankings
    ]
    for name in question.usual_params.keys() & taken.keys():
        values = {params.get(name, "") for params in recorded}
        taken[name] = values.pop() if len(values) == 1 else ""
    return {name: value for name, value in taken.items() if value}


def advise_command(question: CallQuestion, direction: str, gpu: str | None = None) -> str:
    """The command that predicts a question in one direction, or the sum of both, for the GPU of that name."""
    import shlex

    from longca.core import format_length

    params = ",".join(f"{key}={value}" for key, value in question.params.items() if value is not False)
    options = {
        "-m": f"{question.mask}:{params}" if params else question.mask,
        "-s": format_length(question.seqlen),
        "--new-tokens": "" if question.queries is None else format_length(question.queries),
        "--heads": f"{question.num_q_heads}:{question.num_kv_heads}",
        "--head-dim": str(question.head_dim),
        "--dtype": question.dtype,
        "-d": "both" if direction == TOTAL else direction,  # which predicts their sum
        "-w": str(question.world),
        "--corpus": question.corpus or "",
        "--gpu": shlex.quote(gpu) if gpu else "",
    }
    usual = {
        "-s": USUAL_SEQLEN,
        "--new-tokens": "",
        "--heads": USUAL_HEADS,
        "--head-dim": str(USUAL_HEAD_DIM),
        "--dtype": USUAL_DTYPE,
        "-d": "both",
        "-w": "1",
        "--corpus": "",
        "--gpu": "",
    }
    return " ".join(
        ["longca advise", *(f"{key} {value}" for key, value in options.items() if usual.get(key) != value)]
    )


def _predicting(question: CallQuestion, direction: str, gpu: str | None) -> str:
    """The clause with the commands that predict a question, each direction by itself."""
    first, *others = [f"`{advise_command(question, each, gpu)}`" for each in DIRECTIONS[direction]]
    return f"{first} predicts it forward and `-d bwd` backward" if others else f"{first} predicts it"


def _no_record(table: pd.DataFrame, question: CallQuestion, direction: str, gpu: str | None) -> UserError:
    asked = table[table.direction == question.direction] if direction == "both" else table
    others = rankings(asked, replace(question, corpus=None)) if question.corpus else []
    corpora = dict.fromkeys(f"documents of {' and '.join(ranking.corpora)}" for ranking in others)
    near = [*corpora, *filter(None, nearest_settings(asked, question))]
    where = "on one device" if question.world == 1 else "with context parallelism"
    why = f"the nearest have {'; '.join(near)}" if near else f"there are none of {question.mask_text} {where}"
    predicted = (
        "`longca run deterministic` measures such calls"
        if question.deterministic and question.world == 1
        else "Every strategy over `band` is deterministic: leave the option out, and read the rows of `band`"
        if question.deterministic
        else f"{_predicting(question, direction, gpu)}, `longca run` measures it"
    )
    both = direction == "both" and question.direction == "fwd"
    setting = str(question).replace(" · forward", " · forward or backward" if both else " · forward")
    return UserError(
        f"No record has {setting}", why=why, todo=f"Ask for one of these; {predicted}" if near else predicted
    )


def _on_gpu(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of the GPU of that name, as config/hardware.yaml or the driver has it. Raises UserError: there
    are none."""
    from longca.core import load_hardware, matches

    hardware = load_hardware()
    devices = sorted(set(table.device) - {""})
    names = {
        device: (*((model.name, *model.also_called) if (model := hardware.find(device)) else ()), device)
        for device in devices
    }
    alike = matches(name, names)
    if not alike:
        known = matches(
            name, {gpu.name: (gpu.name, *gpu.also_called, *gpu.gpu_names) for gpu in hardware.gpus}
        )
        raise UserError(
            f"No record is of GPU '{name}'",
            why=f"they are of {' and '.join(devices)}" if devices else "there are none",
            todo=f"`longca advise --gpu '{known[0]}'` predicts it"
            if known
            else "Give one of these"
            if devices
            else "",
        )
    return table.loc[table.device.isin(alike)]
