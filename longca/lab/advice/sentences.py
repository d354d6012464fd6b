"""The words of an answer: which option is first, how sure that is, and what is predicted to be faster and is
not advised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.advice.draws import NEAR
from longca.lab.store.text import names, number, plural

if TYPE_CHECKING:
    from longca.lab.advice.answer import AdvisedOption
    from longca.lab.advice.question import AdviceQuestion


def finding(question: AdviceQuestion, options: Sequence[AdvisedOption], draws_asked: int) -> str:
    """The first option, those that intervals do not tell apart from it, and how sure that is."""
    best = options[0]
    draws = len(question.seeds)
    where = f"{question.gpus} GPUs" if question.gpus > 1 else "one GPU"
    span = f"{number(best.tflops)} TFLOP/s a GPU ({number(best.tflops_low)} to {number(best.tflops_high)})"
    mean = f" in the mean of {plural(draws, 'draw')}" if draws > 1 else ""
    time = f"{number(best.prediction.seconds * 1e3)} ms{mean}"
    title = best.candidate.title
    ties = [option.candidate.title for option in options[1:] if option.tied and option.fits]
    if ties:
        text = (
            f"Predicted on {where}, a tie of {len(ties) + 1} in front: {title} ({time}, {span}) and "
            f"{names(ties)}."
        )
    else:
        rest = " It is told apart from all others." if options[1:] else ""
        text = f"{title} is predicted to be the fastest on {where}: {time}, {span}.{rest}"
    front = [best, *(option for option in options[1:] if option.tied and option.fits)]
    sure = _sureness(best, draws, draws_asked)
    return " ".join(filter(None, (text, idle_text(front, question), sure, _passed_over(options))))


def idle_text(options: Sequence[AdvisedOption], question: AdviceQuestion) -> str:
    """The number of GPUs that each of these options leaves without work; "" if all have some."""
    by_number: dict[int, list[str]] = {}
    for option in options:
        if option.candidate.num_idle:
            by_number.setdefault(option.candidate.num_idle, []).append(option.candidate.title)
    return " ".join(
        f"{idle:,} of {question.gpus:,} GPUs {'idles' if idle == 1 else 'idle'} under {names(titles)}: "
        f"there is no more to divide than {plural(question.call.num_q_heads, 'head')} and "
        f"{format_length(question.mask.seqlen_k)} tokens."
        for idle, titles in sorted(by_number.items())
    )


def _sureness(best: AdvisedOption, total: int, asked: int) -> str:
    """The share of draws in which the first option is the fastest, or close to it; "" for one draw alone."""
    if total < 2:
        return ""
    near = f"within {100 * NEAR:.0f} % of the best in {best.near_in}"
    text = f"{best.candidate.title} is first in {best.first_in} of {total} draws, and {near}."
    rest = asked - total
    return f"{text} The other {rest} draws were left out, since these are alike." if rest else text


def _passed_over(options: Sequence[AdvisedOption]) -> str:
    """The options that are predicted to be faster than the first, and why they are not advised."""
    first_s = options[0].prediction.seconds
    faster = [option for option in options[1:] if option.prediction.seconds < first_s and option.fits]
    if not faster:
        return ""
    reasons = "; ".join(dict.fromkeys(option.extrapolated for option in faster))
    titles = names([option.candidate.title for option in faster])
    if len(faster) == 1:
        time = f"{number(faster[0].prediction.seconds * 1e3)} ms"
        return (
            f"{titles} ({time}) is predicted to be faster, but stands behind what was measured, within "
            f"its interval: {reasons}."
        )
    return (
        f"{titles} are predicted to be faster, but stand behind what was measured, within their "
        f"intervals: {reasons}."
    )
