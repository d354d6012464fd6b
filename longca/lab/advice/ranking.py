"""Advice: all ways to run a call, ranked by predicted time, with intervals, and what would change their
order.

An interval holds 90 % of measured times where records tell: residuals of records that were held out while the
rest was fitted. It is wider where the prediction goes beyond records, and the assumption is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any

from longca.core.errors import UserError
from longca.core.units import format_length
from longca.cp.forecast import links_of
from longca.lab.advice.option import Candidate, OptionForecast, candidates, mesh_text, predict_each
from longca.lab.advice.question import BY_PEAK, OTHER_GPU_WIDER, question_of
from longca.lab.ranking.sentences import names
from longca.lab.store.text import format_bytes, number, plural
from longca.predict.fitted import interval_of
from longca.predict.kernel import widest

if TYPE_CHECKING:
    from longca.cp.schedule.timeline import LinkSpeeds
    from longca.lab.advice.question import AdviceQuestion
    from longca.masks.mask import Mask
    from longca.predict.fitted import FittedKernels
    from longca.predict.kernel import Interval

WIDER_BY_RANKS = 0.15  # of the interval, for each doubling beyond the ranks of records
NETWORK_RANGE = (0.6, 1.25)  # of an assumed rate between nodes
COMPARED = 8  # options whose order is looked at when something changes
CHANGES = (
    ("half the rate between nodes", 1.0, 0.5),
    ("twice the rate between nodes", 1.0, 2.0),
    ("half the rate inside a node", 0.5, 1.0),
    ("twice the rate inside a node", 2.0, 1.0),
)


@dataclass(frozen=True)
class AdvisedOption:
    """One way to run the call, with its place in the ranking."""

    candidate: Candidate
    prediction: OptionForecast
    low_s: float
    high_s: float
    tflops: float
    """of a GPU"""
    tflops_low: float
    tflops_high: float
    fits: bool
    """it needs no more memory than a GPU has"""
    tied: bool
    """not told apart from the first: its interval's best is no later than the predicted time of the first"""

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
        }


@dataclass(frozen=True)
class Advice:
    """The answer. The quickest option that fits into memory comes first."""

    question: AdviceQuestion
    options: tuple[AdvisedOption, ...]
    refused: dict[str, str]
    """by method, the reason why it cannot run"""
    assumptions: tuple[str, ...]
    """of intervals, beyond what records tell"""
    changes: tuple[str, ...]
    """what would put another option first"""

    @property
    def best(self) -> AdvisedOption:
        return self.options[0]

    @property
    def finding(self) -> str:
        """The conclusion: the first option, and those that intervals do not tell apart from it."""
        best, question = self.best, self.question
        where = f"{question.gpus} GPUs" if question.gpus > 1 else "one GPU"
        span = (
            f"{number(best.tflops)} TFLOP/s a GPU ({number(best.tflops_low)} to {number(best.tflops_high)})"
        )
        time, title = f"{number(best.prediction.seconds * 1e3)} ms", best.candidate.title
        ties = [one.candidate.title for one in self.options[1:] if one.tied and one.fits]
        if ties:
            return (
                f"Predicted on {where}, a tie of {len(ties) + 1} in front: {title} ({time}, {span}) and "
                f"{names(ties)}."
            )
        rest = " It is told apart from all others." if self.options[1:] else ""
        return f"{title} is predicted to be the fastest on {where}: {time}, {span}.{rest}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        question = self.question
        return {
            "finding": self.finding,
            "gpus": question.gpus,
            "gpu": question.gpu.name,
            "profile": question.network.name,
            "tokens": question.mask.seqlen_q,
            "mask": question.mask.name,
            "density": question.mask.density,
            "call": asdict(question.call),
            "directions": list(question.directions),
            "memory_bytes": question.memory_bytes,
            "records": list(question.fitted.records),
            "options": [option.to_dict() for option in self.options],
            "refused": self.refused,
            "assumptions": list(self.assumptions),
            "changes": list(self.changes),
        }

    def study(self, count: int = 3) -> dict[str, Any]:
        """A study that measures the first options, as `longca run` reads it."""
        question, grids = self.question, []
        for option in self.options[:count]:
            one = option.candidate
            grid: dict[str, Any] = {
                "kernel": [one.kernel],
                "mask": question.mask.name,
                "seqlen": [question.mask.seqlen_q],
                "direction": list(question.directions),
                "heads": f"{question.call.num_q_heads}:{question.call.num_kv_heads}",
                "head_dim": question.call.head_dim,
                "dtype": question.call.dtype,
            }
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
) -> Advice:
    """Ranks the ways to run an attention call by their predicted time. It needs no GPU.

    Args:
        mask: of the whole sequence.
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
    )
    found, refused = candidates(question)
    if not found:
        name, reason = next(iter(refused.items()), ("", "there is no kernel to ask"))
        raise UserError(
            f"No strategy and kernel can run this call on {gpus} GPUs",
            why=f"{name}: {reason}" if name else reason,
            todo="Give other kernels or another number of GPUs",
        )
    links, assumptions = links_of(question.network), _assumptions(question)
    speeds = with_range(links) if question.gpus > links.ranks_per_node else [links]
    made = [(one, predict_each(one, question, speeds)) for one in found]
    limit = question.memory_bytes
    least = min(prediction.memory_bytes for _, (prediction, *_) in made)
    if limit is not None and least > limit:
        raise UserError(
            f"Nothing fits into {format_bytes(limit)} a GPU",
            why=f"the least that any needs is {format_bytes(least)}, {format_bytes(least - limit)} more",
            todo="Take more GPUs or fewer tokens",
        )
    made.sort(key=lambda pair: (limit is not None and pair[1][0].memory_bytes > limit, pair[1][0].seconds))
    first = made[0][1][0].seconds
    options = [option_of(one, predictions, question, first) for one, predictions in made]
    return Advice(
        question,
        tuple(options),
        refused,
        tuple(assumptions),
        _changes([one for one, _ in made[:COMPARED]], question, links),
    )


def with_range(links: LinkSpeeds) -> list[LinkSpeeds]:
    """These speeds, then those with the slowest and the quickest rate between nodes that an interval
    holds."""
    return [
        links,
        *(
            replace(links, inter_node_bytes_per_s=links.inter_node_bytes_per_s * factor)
            for factor in NETWORK_RANGE
        ),
    ]


def option_of(
    one: Candidate, predictions: Sequence[OptionForecast], question: AdviceQuestion, first_s: float
) -> AdvisedOption:
    """A candidate with its interval.

    Args:
        predictions: under the speeds of `with_range`; where nothing leaves a node, the first is enough.
        first_s: predicted seconds of the quickest option.
    """
    interval, (made, *others) = _interval(one, question).widened(_wider(question)), predictions
    low, high = made.seconds * (1 + interval.low), made.seconds * (1 + interval.high)
    if made.inter_node_bytes:
        slow, quick = (other.seconds for other in others)
        low, high = low * min(quick / made.seconds, 1), high * max(slow / made.seconds, 1)
    low, high = min(low, made.seconds), max(high, made.seconds)
    work = sum(map(question.flops, question.directions)) / question.gpus / 1e12
    fits = question.memory_bytes is None or made.memory_bytes <= question.memory_bytes
    return AdvisedOption(
        one, made, low, high, work / made.seconds, work / high, work / low, fits, low <= first_s
    )


def _interval(one: Candidate, question: AdviceQuestion) -> Interval:
    """Residual interval of this strategy/kernel pair if measured; otherwise the union of the kernel's and the
    strategy's intervals."""
    of_kernel = {
        way: model.residuals
        for way in question.directions
        if (model := question.model(one.kernel, way)) is not None
    }
    if one.strategy is None or not question.fitted.strategies:
        return widest(list(of_kernel.values()))
    of_strategy = [
        interval_of(question.fitted, one.strategy, one.kernel, way, interval)
        for way, interval in of_kernel.items()
    ]
    return widest(
        of_strategy if question.is_fitted_gpu and not one.params else [*of_kernel.values(), *of_strategy]
    )


def _wider(question: AdviceQuestion) -> float:
    """The factor by which an interval is wider than that of held-out records."""
    ranks = WIDER_BY_RANKS * max(log2(question.gpus / question.fitted.ranks), 0)
    ranks += question.network.wider - 1
    unusual = (question.call.head_dim != 128) + (question.call.dtype != "bf16")
    return (1 + ranks) * 1.5**unusual


def _assumptions(question: AdviceQuestion) -> list[str]:
    found = []
    network, call = question.network, question.call
    if network.wider > 1:
        found.append(
            f"the machine was busy or unsteady while it was probed: intervals are {network.wider:g} times as "
            f"wide"
        )
    lent = [
        name
        for name in question.kernels
        if any(
            model is not None and model.usual.source == BY_PEAK
            for model in (question.model(name, way) for way in question.directions)
        )
    ]
    if lent:
        whose = f"{', '.join(lent)} on it; these are" if question.is_fitted_gpu else "it; kernels are"
        found.append(
            f"{question.gpu.name}: there are no records of {whose} those of {question.reference.device} by "
            f"the share of their "
            f"peaks, with intervals {OTHER_GPU_WIDER:g} times as wide"
        )
    if question.gpus > network.ranks_per_node:
        low, high = NETWORK_RANGE
        found.append(
            f"between nodes, {network.inter_gb_s.value:g} GB/s a GPU ({network.inter_gb_s.source}); "
            f"intervals hold {low:g} to "
            f"{high:g} times as much"
        )
    if question.gpus > question.fitted.ranks:
        found.append(
            f"more than {plural(question.fitted.ranks, 'rank')}: records end there; intervals are "
            f"{_wider(question):.2g} times as "
            "wide"
        )
    if question.gpus > 1 and not network.measured:
        found.append(f"messages inside a node: {network.intra_gb_s.source}")
    if call.head_dim != 128 or call.dtype != "bf16":
        found.append(
            f"head dim {call.head_dim}, {call.dtype}: records have head dim 128 and bf16; time is scaled by "
            f"the head dim"
        )
    lengths = [
        model.longest_tokens
        for name in question.kernels
        for way in question.directions
        if (model := question.model(name, way)) is not None
    ]
    if question.gpus == 1 and lengths and question.mask.seqlen_q > max(lengths):
        found.append(
            f"{format_length(question.mask.seqlen_q)} tokens: records end at {format_length(max(lengths))}"
        )
    return found


def _changes(found: Sequence[Candidate], question: AdviceQuestion, links: LinkSpeeds) -> tuple[str, ...]:
    """Perturbations of the link speeds under which another candidate becomes the fastest (candidates sorted
    by time)."""
    if question.gpus == 1 or len(found) < 2:
        return ()
    changes = [change for change in CHANGES if change[2] == 1 or question.gpus > links.ranks_per_node]
    speeds = [
        replace(
            links,
            intra_node_bytes_per_s=links.intra_node_bytes_per_s * near,
            inter_node_bytes_per_s=links.inter_node_bytes_per_s * far,
        )
        for _, near, far in changes
    ]
    again = zip(*(predict_each(one, question, speeds) for one in found), strict=True)
    quickest = [
        min((made.seconds, number) for number, made in enumerate(predictions)) for predictions in again
    ]
    return tuple(
        f"with {what}, {found[number].title} would be first, at {seconds * 1e3:.3g} ms"
        for (what, _, _), (seconds, number) in zip(changes, quickest, strict=True)
        if number
    )
