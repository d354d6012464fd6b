"""Prediction over draws: each way to run a call, in several sequences drawn from the same source.

A strategy plans each sequence by itself, so both its time and its place among the others differ by draw.

The interval of a prediction, and the parts of it that no record supports.

An interval holds 90 % of measured times where records tell: residuals of records that were held out while the
rest was fitted. It is wider where the prediction goes beyond records.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from typing import TYPE_CHECKING

from longca.lab.advice.option import candidates, mean_forecast, predict_each
from longca.predict import part_kind, widest
from longca.predict.fitted import BY_PEAK, interval_of

if TYPE_CHECKING:
    from longca.cp.schedule import LinkSpeeds
    from longca.lab.advice.option import Candidate, OptionForecast
    from longca.lab.advice.question import AdviceQuestion
    from longca.predict import Interval

WIDER_BY_RANKS = 0.15  # of the interval, for each doubling beyond the ranks of records
NETWORK_RANGE = (0.6, 1.25)  # of an assumed rate between nodes
CHANGES = (
    ("half the rate between nodes", 1.0, 0.5),
    ("twice the rate between nodes", 1.0, 2.0),
    ("half the rate inside a node", 0.5, 1.0),
    ("twice the rate inside a node", 2.0, 1.0),
)
"""(what changes, factor of the rate inside a node, factor of the rate between nodes)"""


def with_range(links: LinkSpeeds) -> list[LinkSpeeds]:
    """These speeds, then those with the slowest and the quickest rate between nodes that an interval
    holds."""
    rate = links.inter_node_bytes_per_s
    return [links, *(replace(links, inter_node_bytes_per_s=rate * factor) for factor in NETWORK_RANGE)]


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


FIRST_DRAWS = 3
"""after these, draws that are all alike end, and ways that are far behind are not planned again"""
ALIKE = 0.01
"""spread of the times of every way, from which on further draws tell something"""
HOPELESS = 1.5
"""times the best of each of the first draws"""
FEWEST_WAYS = 3
"""that are planned in all draws"""
NEAR = 0.03
"""within so much of the best of a draw"""


@dataclass
class WayForecasts:
    """One way to run a call, predicted in some or all draws."""

    candidate: Candidate
    """with the plan of the first draw"""
    by_draw: dict[int, list[OptionForecast]] = field(default_factory=dict)
    """number of a draw → the forecast at each of the speeds that were asked for"""
    plans: dict[int, Hashable] = field(default_factory=dict)
    """number of a draw → `Candidate.plan_key`"""

    def seconds(self, speed: int = 0) -> dict[int, float]:
        """Number of a draw → the predicted time at a speed."""
        return {draw: forecasts[speed].seconds for draw, forecasts in self.by_draw.items()}

    def mean(self, factor: float = 1.0) -> OptionForecast:
        """The mean forecast over draws, by `mean_forecast`."""
        return mean_forecast([forecasts[0] for forecasts in self.by_draw.values()], factor)


@dataclass(frozen=True)
class DrawForecasts:
    """All ways to run a call in all draws."""

    ways: tuple[WayForecasts, ...]
    refused: dict[str, str]
    """by method, the reason why it cannot run"""
    flops: tuple[int, ...]
    """floating-point operations of each draw, of all GPUs and directions; fewer draws than were asked for if
    the first ones were alike"""

    @property
    def num_draws(self) -> int:
        return len(self.flops)

    def best(self, speed: int = 0) -> list[float]:
        """The least time of each draw, at a speed."""
        seconds = [way.seconds(speed) for way in self.ways]
        return [min(times[draw] for times in seconds if draw in times) for draw in range(self.num_draws)]

    def factor(self, way: WayForecasts) -> float:
        """The mean best time of all draws over that of the draws in which a way was predicted: 1 for all
        draws."""
        best = self.best()
        own = [best[draw] for draw in way.by_draw]
        return (sum(best) / len(best)) / (sum(own) / len(own)) if sum(own) else 1.0

    def mean_seconds(self, way: WayForecasts, speed: int = 0) -> float:
        """The mean time over draws, at a speed."""
        times = way.seconds(speed).values()
        return sum(times) / len(times) * self.factor(way)

    def firsts(self, way: WayForecasts) -> int:
        """The number of draws in which a way is the fastest; ways with the same plan share the first
        place."""
        return sum(seconds <= self.best()[draw] for draw, seconds in way.seconds().items())

    def nears(self, way: WayForecasts) -> int:
        """The number of draws in which a way takes at most NEAR more than the best."""
        return sum(seconds <= self.best()[draw] * (1 + NEAR) for draw, seconds in way.seconds().items())


def is_tied(
    way: WayForecasts, first: WayForecasts, forecasts: DrawForecasts, question: AdviceQuestion
) -> bool:
    """True if a way and the first are not told apart: the low end of the way's interval is not above the time
    of the first, or the time of the way is not above the high end of the first's interval.

    Both have the same rate between nodes, since a rate that is not known moves both.
    """
    speeds = range(1 + len(NETWORK_RANGE) if question.gpus > question.network.ranks_per_node else 1)
    wider = widening(question)
    low = 1 + min(residuals(way.candidate, question).widened(wider).low, 0)
    high = 1 + max(residuals(first.candidate, question).widened(wider).high, 0)
    times = [(forecasts.mean_seconds(way, speed), forecasts.mean_seconds(first, speed)) for speed in speeds]
    return any(own * low <= best or own <= best * high for own, best in times)


def forecast_draws(question: AdviceQuestion, speeds: Sequence[LinkSpeeds]) -> DrawForecasts:
    """Predicts all ways to run a call in all draws of a question.

    A way that one of the draws refuses is refused. If several ways have the same plan in all draws, only
    the first is kept.
    """
    ways: dict[str, WayForecasts] = {}
    refused: dict[str, str] = {}
    hopeless: set[str] = set()
    flops: list[int] = []
    for number in range(question.num_draws):
        drawn = question.drawn(number)
        flops.append(sum(map(drawn.flops, drawn.directions)))
        able, unable = candidates(drawn, hopeless)
        seed = f" (seed {question.seeds[number]})" if number else ""
        refused |= {title: f"{reason}{seed}" for title, reason in unable.items() if title not in refused}
        known: dict[Hashable, list[OptionForecast]] = {}
        for candidate in able:
            if candidate.plan_key not in known:
                known[candidate.plan_key] = predict_each(candidate, drawn, speeds)
                candidate.forecasts.clear()
            way = ways.setdefault(candidate.title, WayForecasts(candidate))
            way.by_draw[number], way.plans[number] = known[candidate.plan_key], candidate.plan_key
        for title in refused:
            ways.pop(title, None)
        if number + 1 == FIRST_DRAWS < question.num_draws:
            first = DrawForecasts(_distinct(ways.values()), refused, tuple(flops))
            if all(_is_steady(way.seconds().values()) for way in first.ways):
                return first
            hopeless = _hopeless(DrawForecasts(tuple(ways.values()), refused, tuple(flops)))
    return DrawForecasts(_distinct(ways.values()), refused, tuple(flops))


def _distinct(ways: Iterable[WayForecasts]) -> tuple[WayForecasts, ...]:
    """These ways without those that made the plan of an earlier one in every draw."""
    by_plans: dict[Hashable, WayForecasts] = {}
    for way in ways:
        by_plans.setdefault(tuple(way.plans.items()), way)
    return tuple(by_plans.values())


def _is_steady(seconds: Iterable[float]) -> bool:
    times = list(seconds)
    return max(times) <= min(times) * (1 + ALIKE)


def _hopeless(forecasts: DrawForecasts) -> set[str]:
    """The titles of ways that take HOPELESS times the best in every draw so far; some always remain."""
    best = forecasts.best()
    ordered = sorted(forecasts.ways, key=forecasts.mean_seconds)
    return {
        way.candidate.title
        for way in ordered[FEWEST_WAYS:]
        if all(seconds > HOPELESS * best[draw] for draw, seconds in way.seconds().items())
    }
