"""The sentences of an answer: its finding, the assumptions beyond records, and what would change the
order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.advice.blocks import draws_alike
from longca.lab.advice.draws import NEAR
from longca.lab.advice.interval import NETWORK_RANGE, is_lent, widening
from longca.lab.advice.question import OTHER_GPU_WIDER
from longca.lab.ranking.sentences import names
from longca.lab.store.text import number, plural

if TYPE_CHECKING:
    from longca.cp.schedule import LinkSpeeds
    from longca.lab.advice.answer import AdvisedOption
    from longca.lab.advice.draws import DrawForecasts, WayForecasts
    from longca.lab.advice.question import AdviceQuestion

COMPARED = 8  # options whose order is looked at when something changes
CHANGES = (
    ("half the rate between nodes", 1.0, 0.5),
    ("twice the rate between nodes", 1.0, 2.0),
    ("half the rate inside a node", 0.5, 1.0),
    ("twice the rate inside a node", 2.0, 1.0),
)
"""(what changes, factor of the rate inside a node, factor of the rate between nodes)"""


def _without_models(lent: Sequence[str], question: AdviceQuestion) -> str:
    """The reason why kernels have no model on the GPU that was asked for."""
    from longca.lab.store.load import committed_of  # not needed for a GPU with models

    if question.is_fitted_gpu:
        return f"there are no records of {', '.join(lent)} on it; these are"
    files = committed_of(question.gpu.gpu_names)
    if not files:
        return "there are no records of it; kernels are"
    folder = f"reports/{files[0].parent.name}"
    return f"no models are fitted to its records in {folder} (--records does so); kernels are"


def assumptions(question: AdviceQuestion) -> list[str]:
    """The assumptions of the answer beyond records, a sentence each."""
    network = question.network
    call = question.call
    texts = []
    if network.wider > 1:
        texts.append(
            f"the machine was busy or unsteady while it was probed: intervals are {network.wider:g} times as "
            f"wide"
        )
    lent = [name for name in question.kernels if is_lent(name, question)]
    if lent:
        texts.append(
            f"{question.gpu.name}: {_without_models(lent, question)} those of {question.reference.device} by "
            f"the share of their peaks, with intervals {OTHER_GPU_WIDER:g} times as wide"
        )
    if question.gpus > network.ranks_per_node:
        low, high = NETWORK_RANGE
        texts.append(
            f"between nodes, {network.inter_gb_s.value:g} GB/s a GPU ({network.inter_gb_s.source}); "
            f"intervals hold {low:g} to {high:g} times as much"
        )
    if question.gpus > question.fitted.ranks:
        texts.append(
            f"more than {plural(question.fitted.ranks, 'rank')}: records end there; intervals are "
            f"{widening(question):.2g} times as wide"
        )
    if question.gpus > 1 and not network.measured:
        texts.append(f"messages inside a node: {network.intra_gb_s.source}")
    if call.head_dim != 128 or call.dtype != "bf16":
        texts.append(
            f"head dim {call.head_dim}, {call.dtype}: records have head dim 128 and bf16; time is scaled by "
            f"the head dim"
        )
    models = [question.model(name, way) for name in question.kernels for way in question.directions]
    lengths = [model.longest_tokens for model in models if model is not None]
    if question.gpus == 1 and lengths and question.mask.seqlen_q > max(lengths):
        texts.append(
            f"{format_length(question.mask.seqlen_q)} tokens: records end at {format_length(max(lengths))}"
        )
    grid = question.mask.grid
    if grid is not None and question.mask.origin is not None and draws_alike(question.mask):
        texts.append(f"one draw: it has {grid.visible.size:,} blocks, so that others take the same time")
    other = [pair for pair in question.fitted.other_protocol if pair.split()[0] in question.kernels]
    if other:
        usual, rest = ("with", "without") if question.fitted.rests else ("without", "with")
        texts.append(f"{names(other)}: fitted on calls {rest} rests of the GPU, the others on calls {usual}")
    return texts


def changed_speeds(links: LinkSpeeds, gpus: int) -> list[tuple[str, LinkSpeeds]]:
    """(what is changed, the speeds of messages then), for all that matters on so many GPUs."""
    if gpus == 1:
        return []
    near = links.intra_node_bytes_per_s
    far = links.inter_node_bytes_per_s
    return [
        (what, replace(links, intra_node_bytes_per_s=near * inside, inter_node_bytes_per_s=far * between))
        for what, inside, between in CHANGES
        if between == 1 or gpus > links.ranks_per_node
    ]


def changes(
    ways: Sequence[WayForecasts], forecasts: DrawForecasts, speeds: Sequence[tuple[str, int]]
) -> tuple[str, ...]:
    """Changes that would put another way first.

    Args:
        ways: in the order of the ranking.
        speeds: (what is changed, the index of these speeds in the forecasts).
    """
    texts = []
    for what, speed in speeds:
        seconds, number = min(
            (forecasts.mean_seconds(way, speed), number) for number, way in enumerate(ways[:COMPARED])
        )
        if number:
            texts.append(
                f"with {what}, {ways[number].candidate.title} would be first, at {seconds * 1e3:.3g} ms"
            )
    return tuple(texts)


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
    return " ".join(filter(None, (text, _sureness(best, draws, draws_asked), _passed_over(options))))


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
