"""The interval of a prediction, and the parts of it that no record supports.

An interval holds 90 % of measured times where records tell: residuals of records that were held out while the
rest was fitted. It is wider where the prediction goes beyond records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING

from longca.lab.advice.question import BY_PEAK
from longca.predict import part_kind, widest
from longca.predict.fitted import interval_of

if TYPE_CHECKING:
    from longca.cp.schedule import LinkSpeeds
    from longca.lab.advice.option import Candidate, OptionForecast
    from longca.lab.advice.question import AdviceQuestion
    from longca.predict import Interval

WIDER_BY_RANKS = 0.15  # of the interval, for each doubling beyond the ranks of records
NETWORK_RANGE = (0.6, 1.25)  # of an assumed rate between nodes


def with_range(links: LinkSpeeds) -> list[LinkSpeeds]:
    """These speeds, then those with the slowest and the quickest rate between nodes that an interval
    holds."""
    rate = links.inter_node_bytes_per_s
    return [links, *(replace(links, inter_node_bytes_per_s=rate * factor) for factor in NETWORK_RANGE)]


def interval_s(
    candidate: Candidate, forecasts: Sequence[OptionForecast], question: AdviceQuestion
) -> tuple[float, float]:
    """The 90 % interval of a candidate's time, in seconds.

    Args:
        forecasts: under the speeds of `with_range`; where nothing leaves a node, the first is enough.
    """
    interval = residuals(candidate, question).widened(widening(question))
    forecast = forecasts[0]
    low = forecast.seconds * (1 + interval.low)
    high = forecast.seconds * (1 + interval.high)
    if forecast.inter_node_bytes:
        slow, quick = (other.seconds for other in forecasts[1:3])
        low = low * min(quick / forecast.seconds, 1)
        high = high * max(slow / forecast.seconds, 1)
    return min(low, forecast.seconds), max(high, forecast.seconds)


def residuals(candidate: Candidate, question: AdviceQuestion) -> Interval:
    """Residual interval of this strategy/kernel pair if measured; otherwise the union of the kernel's and the
    strategy's intervals."""
    of_kernel = {
        way: model.residuals
        for way in question.directions
        if (model := question.model(candidate.kernel, way)) is not None
    }
    if candidate.strategy is None or not question.fitted.strategies:
        return widest(list(of_kernel.values()))
    of_strategy = [
        interval_of(question.fitted, candidate.strategy, candidate.kernel, way, interval)
        for way, interval in of_kernel.items()
    ]
    return widest(
        of_strategy
        if question.is_fitted_gpu and not candidate.params
        else [*of_kernel.values(), *of_strategy]
    )


def widening(question: AdviceQuestion) -> float:
    """The factor by which an interval is wider than that of held-out records."""
    ranks = WIDER_BY_RANKS * max(log2(question.gpus / question.fitted.ranks), 0)
    ranks += question.network.wider - 1
    unusual = (question.call.head_dim != 128) + (question.call.dtype != "bf16")
    return (1 + ranks) * 1.5**unusual


def is_lent(kernel: str, question: AdviceQuestion) -> bool:
    """True if a kernel's time is that on another GPU, scaled by the share of peaks."""
    models = (question.model(kernel, way) for way in question.directions)
    return any(model is not None and model.usual.source == BY_PEAK for model in models)


def extrapolations(candidates: Sequence[Candidate], question: AdviceQuestion) -> list[str]:
    """For each candidate, what no record supports in its prediction, but records do support in that of
    others.

    It is "" where there is nothing.
    """
    reasons = [_unsupported(candidate, question) for candidate in candidates]
    common = set.intersection(*map(set, reasons)) if reasons else set()
    return ["; ".join(text for kind, text in of_one.items() if kind not in common) for of_one in reasons]


def _unsupported(candidate: Candidate, question: AdviceQuestion) -> dict[str, str]:
    """The parts that no record supports, by a word for their kind."""
    reasons = {}
    if is_lent(candidate.kernel, question):
        reasons["kernel"] = f"no record has {candidate.kernel} on {question.gpu.name}"
    if candidate.strategy is not None and question.parts:
        kind = part_kind(question.mask.traits)
        if kind not in question.parts.get(candidate.kernel, ()):
            reasons["parts"] = f"no record has {candidate.kernel} in parts of {kind}"
    return reasons
