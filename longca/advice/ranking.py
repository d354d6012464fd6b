"""Advice: all ways to run a call, ranked by predicted time, with intervals, and what would change their order.

For a mask that is drawn, times are means over several draws, and an interval holds them all. A prediction that no
record supports counts with the slow end of its interval beside one that records support: see
`longca.advice.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from longca.advice.beyond import assumptions, changed_speeds, changes
from longca.advice.draws import NEAR, forecast_draws
from longca.advice.interval import extrapolations, interval_s, with_range
from longca.advice.option import Candidate, OptionForecast, mesh_text
from longca.advice.question import question_of
from longca.core.defaults import DRAWS
from longca.core.errors import UserError
from longca.cp.forecast import links_of
from longca.ranking.sentences import names
from longca.store.text import format_bytes, number, plural

if TYPE_CHECKING:
    from longca.advice.draws import DrawForecasts, WayForecasts
    from longca.advice.question import AdviceQuestion
    from longca.masks.mask import Mask
    from longca.predict.fitted import FittedKernels

QUANTILES = (0.1, 0.5, 0.9)  # of time over draws


@dataclass(frozen=True, repr=False)
class AdvisedOption:
    """One way to run the call, with its place in the ranking."""

    candidate: Candidate
    prediction: OptionForecast
    """the mean over draws"""
    low_s: float
    high_s: float
    """the interval of a single call, of any draw"""
    mean_low_s: float
    mean_high_s: float
    """the interval of the mean over draws"""
    tflops: float
    """of a GPU"""
    tflops_low: float
    tflops_high: float
    fits: bool
    """it needs no more memory than a GPU has, in all draws"""
    tied: bool
    """not told apart from the first: the fast end of its mean's interval is no later than the mean of the first"""
    by_seed: dict[int, float]
    """seed → seconds, of the draws in which it was predicted; {} for a mask that is not drawn"""
    first_in: int
    """number of draws in which it is the fastest"""
    near_in: int
    """number of draws in which it takes at most NEAR more than the fastest"""
    extrapolated: str = ""
    """what no record supports in its prediction, but records do support in that of others"""

    def __repr__(self) -> str:
        return f"<AdvisedOption {self.candidate.title} {number(self.prediction.seconds * 1e3)} ms>"

    @property
    def quantiles(self) -> dict[float, float]:
        """Share of draws → the seconds that this share takes at most; {} for a mask that is not drawn."""
        import numpy as np

        times = list(self.by_seed.values())
        return {share: float(np.quantile(times, share)) for share in QUANTILES} if times else {}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        one, made = self.candidate, self.prediction
        return {
            "method": one.title,
            "strategy": one.strategy,
            "params": dict(one.params),
            "kernel": one.kernel,
            "mesh": mesh_text(one.work),
            "how": one.how,
            "seconds": made.seconds,
            "seconds_low": self.low_s,
            "seconds_high": self.high_s,
            "seconds_by_direction": made.by_direction,
            "mean_seconds_low": self.mean_low_s,
            "mean_seconds_high": self.mean_high_s,
            "seconds_by_seed": {str(seed): seconds for seed, seconds in self.by_seed.items()},
            "seconds_quantiles": {f"{share:g}": seconds for share, seconds in self.quantiles.items()},
            "first_in_draws": self.first_in,
            "near_first_in_draws": self.near_in,
            "tflops_per_gpu": self.tflops,
            "tflops_per_gpu_low": self.tflops_low,
            "tflops_per_gpu_high": self.tflops_high,
            "memory_bytes": made.memory_bytes,
            "fits_memory": self.fits,
            "sent_bytes": made.sent_bytes,
            "inter_node_bytes": made.inter_node_bytes,
            "imbalance": made.imbalance,
            "exposed_messages": made.exposed,
            "kernel_calls": made.num_calls,
            "tile_waste": made.waste,
            "clock_slowdown": made.slowdown,
            "limit": made.limit,
            "tied_with_first": self.tied,
            "extrapolated": self.extrapolated,
        }


@dataclass(frozen=True, repr=False)
class Advice:
    """The answer. The option to take comes first, of those that fit into memory."""

    question: AdviceQuestion
    options: tuple[AdvisedOption, ...]
    refused: dict[str, str]
    """by method, the reason why it cannot run"""
    assumptions: tuple[str, ...]
    """of intervals, beyond what records tell"""
    changes: tuple[str, ...]
    """what would put another option first"""
    draws_asked: int = 1

    def __repr__(self) -> str:
        return f"<Advice: {self.finding}>"

    def _repr_html_(self) -> str:
        from longca.advice.page import html

        return html(self)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the draws that were predicted; () for a mask that is not drawn."""
        return self.question.seeds

    @property
    def best(self) -> AdvisedOption:
        return self.options[0]

    @property
    def finding(self) -> str:
        """The conclusion: the first option, those that intervals do not tell apart from it, and how sure that is."""
        best, question = self.best, self.question
        where = f"{question.gpus} GPUs" if question.gpus > 1 else "one GPU"
        span = (
            f"{number(best.tflops)} TFLOP/s a GPU ({number(best.tflops_low)} to {number(best.tflops_high)})"
        )
        mean = f" in the mean of {plural(len(self.seeds), 'draw')}" if len(self.seeds) > 1 else ""
        time, title = f"{number(best.prediction.seconds * 1e3)} ms{mean}", best.candidate.title
        ties = [one.candidate.title for one in self.options[1:] if one.tied and one.fits]
        if ties:
            text = f"Predicted on {where}, a tie of {len(ties) + 1} in front: {title} ({time}, {span}) and {names(ties)}."
        else:
            rest = " It is told apart from all others." if self.options[1:] else ""
            text = f"{title} is predicted to be the fastest on {where}: {time}, {span}.{rest}"
        return " ".join(filter(None, (text, self.sureness, self.passed_over)))

    @property
    def sureness(self) -> str:
        """How often the first option is the fastest of a draw, or close to it; "" for a mask that is not drawn."""
        if len(self.seeds) < 2:
            return ""
        best, total = self.best, len(self.seeds)
        near = f"within {100 * NEAR:.0f} % of the best in {best.near_in}"
        text = f"{best.candidate.title} is first in {best.first_in} of {total} draws, and {near}."
        rest = self.draws_asked - total
        return f"{text} The other {rest} draws were left out, since these are alike." if rest else text

    @property
    def passed_over(self) -> str:
        """The options that are predicted to be faster than the first, and why they are not advised."""
        faster = [
            one
            for one in self.options[1:]
            if one.prediction.seconds < self.best.prediction.seconds and one.fits
        ]
        if not faster:
            return ""
        reasons = dict.fromkeys(one.extrapolated for one in faster)
        rest = f" ({number(faster[0].prediction.seconds * 1e3)} ms)" if len(faster) == 1 else ""
        fewer = (
            "is predicted to be faster, but stands"
            if len(faster) == 1
            else "are predicted to be faster, but stand"
        )
        return (
            f"{names([one.candidate.title for one in faster])}{rest} {fewer} behind what was measured, within its interval: "
            f"{'; '.join(reasons)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        question = self.question
        return {
            "finding": self.finding,
            "setting": question.setting,
            "gpus": question.gpus,
            "gpu": question.gpu.name,
            "profile": question.network.name,
            "ranks_per_node": question.network.ranks_per_node,
            "tokens": question.mask.seqlen_q,
            "mask": question.mask.name,
            "mask_params": question.mask_params,
            "corpus": question.corpus,
            "seeds": list(self.seeds),
            "draws_asked": self.draws_asked,
            "density": question.mask.density,
            "call": asdict(question.call),
            "directions": list(question.directions),
            "memory_bytes": question.memory_bytes,
            "records": list(question.fitted.records),
            "rests": question.fitted.rests,
            "options": [option.to_dict() for option in self.options],
            "refused": self.refused,
            "assumptions": list(self.assumptions),
            "changes": list(self.changes),
        }

    def study(self, count: int = 3) -> dict[str, Any]:
        """A study that measures the first options in all draws, as `longca run` reads it.

        Raises:
            UserError: no study can ask for the mask.
        """
        question, grids = self.question, []
        mask, params = question.mask, question.mask_params
        if not mask.name or (mask.documents is not None and mask.origin is None):
            raise UserError(
                "A study cannot ask for this mask",
                why="it is made of bands or documents of your own",
                todo="Make it with longca.build_mask from a corpus: `longca data build` makes one of your lengths",
            )
        for option in self.options[:count]:
            one = option.candidate
            grid: dict[str, Any] = {
                "kernel": [one.kernel],
                "mask": [{mask.name: params} if params else mask.name],
                "seqlen": [mask.seqlen_q],
                "direction": list(question.directions),
                "heads": f"{question.call.num_q_heads}:{question.call.num_kv_heads}",
                "head_dim": question.call.head_dim,
                "dtype": question.call.dtype,
            }
            if question.corpus is not None:
                grid["corpus"] = question.corpus
            if self.seeds:
                grid["seed"] = list(self.seeds)
            if one.strategy is not None:
                grid |= {
                    "kind": "cp",
                    "world": question.gpus,
                    "strategy": [{one.strategy: dict(one.params)} if one.params else one.strategy],
                }
            grids.append(grid)
        messages = "symmetric" if "copy-engines" in question.network.name else "nccl"
        return {
            "title": "The first options of `longca advise`",
            "measure": {"messages": messages},
            "grids": grids,
        }


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
        mask: of the whole sequence. If it was drawn by `longca.build_mask`, others are drawn like it, with the seeds after its own.
        gpus: over which the sequence is divided; 1 ranks kernels.
        num_kv_heads: as many as query heads if not given.
        direction: `fwd`, `bwd`, or `both` as in training.
        profile: of messages, a name in `config/hardware.yaml`.
        gpu: model of GPU in that file; the one of the profile if not given. Without records of it, kernels are scaled by its peak.
        memory_bytes: of a GPU, that may be used; all of it if not given.
        ranks_per_node: GPUs of a node, instead of those of the profile.
        kernels, strategies: names; those that are worth comparing if not given.
        fitted: models of kernels; those of the project's records if not given.
        draws: sequences that times are predicted for, of a mask that is drawn. Fewer, if the first three are alike.

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
    advised, options = ranked[0][1], tuple(option for _, option in ranked)
    supported = [
        way
        for way, option in ranked
        if bool(option.extrapolated) <= bool(advised.extrapolated) and option.fits
    ]
    others = (
        changes(
            supported, forecasts, [(what, len(speeds) + place) for place, (what, _) in enumerate(changed)]
        )
        if ordered[1:]
        else ()
    )
    answered = replace(question, seeds=question.seeds[: forecasts.num_draws])
    return Advice(
        answered, options, forecasts.refused, tuple(assumptions(question)), others, question.num_draws
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
        way.candidate, mean, min(lows), max(highs), mean_low, mean_high, work / mean.seconds, work / mean_high,
        work / mean_low, fits, False, by_seed, forecasts.firsts(way), forecasts.nears(way), extrapolated)  # fmt: skip
