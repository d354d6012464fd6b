"""Advice: all ways to run a call, ranked by predicted time, with intervals, and what would change their
order.

For a mask that is drawn, times are means over several draws, and an interval holds them all. A prediction
that no record supports counts with the slow end of its interval beside one that records support: see
`longca.lab.advice.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core import UserError
from longca.cp.forecast import links_of
from longca.lab.advice.answer import Advice, AdvisedOption
from longca.lab.advice.draws import forecast_draws
from longca.lab.advice.interval import extrapolations, interval_s, with_range
from longca.lab.advice.question import question_of
from longca.lab.advice.words import assumptions, changed_speeds, changes, finding
from longca.lab.store.text import format_bytes, plural
from longca.lab.studies import DRAWS

if TYPE_CHECKING:
    from longca.lab.advice.draws import DrawForecasts, WayForecasts
    from longca.lab.advice.question import AdviceQuestion
    from longca.masks import Mask
    from longca.predict.fitted import FittedKernels


def advise(
    mask: Mask,
    *,
    gpus: int = 1,
    num_q_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int = 128,
    dtype: str = "bf16",
    direction: str = "both",
    profile: str | None = None,
    gpu: str | None = None,
    memory_bytes: float | None = None,
    ranks_per_node: int | None = None,
    kernels: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    fitted: FittedKernels | None = None,
    draws: int = DRAWS,
) -> Advice:
    """Ranks the ways to run an attention call by their predicted time. It needs no GPU.

    Args:
        mask: of the whole sequence. If it was drawn by `longca.build_mask`, others are drawn like it, with
            the seeds after its own.
        gpus: over which the sequence is divided; 1 ranks kernels.
        num_kv_heads: as many as query heads if not given.
        direction: `fwd`, `bwd`, or `both` as in training.
        profile: of messages, a name in `config/hardware.yaml`.
        gpu: model of GPU in that file; the one of the profile if not given. Without records of it, kernels
            are scaled by its peak.
        memory_bytes: of a GPU, that may be used; all of it if not given.
        ranks_per_node: GPUs of a node, instead of those of the profile.
        kernels, strategies: names; those that are worth comparing if not given.
        fitted: models of kernels; those of the project's records if not given.
        draws: sequences that times are predicted for, of a mask that is drawn. Fewer, if the first three are
            alike.

    Raises:
        UserError: an argument cannot be used, nothing can run this call, or nothing fits into memory.
    """
    question = question_of(
        mask,
        gpus=gpus,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        direction=direction,
        profile=profile,
        gpu=gpu,
        memory_bytes=memory_bytes,
        ranks_per_node=ranks_per_node,
        kernels=kernels,
        strategies=strategies,
        fitted=fitted,
        draws=draws,
    )
    links = links_of(question.network)
    speeds = with_range(links) if question.gpus > links.ranks_per_node else [links]
    changed = changed_speeds(links, question.gpus)
    forecasts = forecast_draws(question, [*speeds, *(changed_links for _, changed_links in changed)])
    if not forecasts.ways:
        name, reason = next(iter(forecasts.refused.items()), ("", "there is no kernel to ask"))
        raise UserError(
            f"No strategy and kernel can run this call on {plural(gpus, 'GPU')}",
            why=f"{name}: {reason}" if name else reason,
            todo="Give other kernels or another number of GPUs",
        )
    limit = question.memory_bytes
    least = min(way.mean().memory_bytes for way in forecasts.ways)
    if limit is not None and least > limit:
        raise UserError(
            f"Nothing fits into {format_bytes(limit)} a GPU",
            why=f"the least that any needs is {format_bytes(least)}, {format_bytes(least - limit)} more",
            todo="Take more GPUs or fewer tokens",
        )
    ranked = options_of(forecasts, question)
    ordered = [way for way, _ in ranked]
    advised = ranked[0][1]
    options = tuple(option for _, option in ranked)
    supported = [
        way
        for way, option in ranked
        if bool(option.extrapolated) <= bool(advised.extrapolated) and option.fits
    ]
    others = (
        changes(
            supported, forecasts, [(what, len(speeds) + index) for index, (what, _) in enumerate(changed)]
        )
        if ordered[1:]
        else ()
    )
    answered = replace(question, seeds=question.seeds[: forecasts.num_draws])
    sentence = finding(answered, options, question.num_draws)
    return Advice(
        answered,
        sentence,
        options,
        forecasts.refused,
        tuple(assumptions(question)),
        others,
        question.num_draws,
    )


def options_of(
    forecasts: DrawForecasts, question: AdviceQuestion
) -> list[tuple[WayForecasts, AdvisedOption]]:
    """The ways with their options, in the order of the ranking."""
    reasons = extrapolations([way.candidate for way in forecasts.ways], question)
    built = {
        id(way): _option_of(way, forecasts, question, reason)
        for way, reason in zip(forecasts.ways, reasons, strict=True)
    }

    def place(way: WayForecasts) -> tuple[bool, float, float]:
        option = built[id(way)]
        counted = option.mean_high_s if option.extrapolated else option.prediction.seconds
        return not option.fits, counted, option.prediction.seconds

    ordered = sorted(forecasts.ways, key=place)
    first_s = built[id(ordered[0])].prediction.seconds
    return [(way, replace(built[id(way)], tied=built[id(way)].mean_low_s <= first_s)) for way in ordered]


def _option_of(
    way: WayForecasts, forecasts: DrawForecasts, question: AdviceQuestion, extrapolated: str
) -> AdvisedOption:
    """A way with its intervals, which is not yet compared with the first."""
    factor = forecasts.factor(way)
    mean = way.mean(factor)
    spans = [interval_s(way.candidate, of_draw, question) for of_draw in way.by_draw.values()]
    lows, highs = zip(*spans, strict=True)
    work = sum(forecasts.flops) / len(forecasts.flops) / question.gpus / 1e12
    fits = question.memory_bytes is None or mean.memory_bytes <= question.memory_bytes
    seconds = way.seconds()
    by_seed = {question.seeds[draw]: value for draw, value in seconds.items()} if question.seeds else {}
    mean_low, mean_high = (factor * sum(ends) / len(ends) for ends in (lows, highs))
    return AdvisedOption(
        way.candidate, mean, min(lows), max(highs), mean_low, mean_high, work / mean.seconds, work / mean_high,  # noqa: E501
        work / mean_low, fits, False, by_seed, forecasts.firsts(way), forecasts.nears(way), extrapolated)  # fmt: skip  # noqa: E501
