"""The answer of advice: the options in their order, as an object, as plain values, and as a study that checks
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from longca.core import UserError
from longca.lab.advice.measured import MeasuredBeside, measured_beside
from longca.lab.advice.option import Candidate, OptionForecast, mesh_text
from longca.lab.ranking.sentences import place_text
from longca.lab.store.text import format_bytes, number

if TYPE_CHECKING:
    from longca.lab.advice.question import AdviceQuestion

MOST_MEASURED = 3  # options whose nearest measured cells are named
MOST_ROWS = 6  # in a notebook
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
    """not told apart from the first (`longca.lab.advice.draws.is_tied`)"""
    by_seed: dict[int, float]
    """seed → seconds, of the draws in which it was predicted; {} for a mask that is not drawn"""
    first_in: int
    """number of draws in which it is the fastest"""
    near_in: int
    """number of draws in which it takes at most NEAR more than the fastest"""
    extrapolated: str = ""
    """what no record supports in its prediction, but records do support in that of others"""
    place: int = 1
    share: float = 1.0
    """of the first's rate, from 0 to 1"""

    def __repr__(self) -> str:
        return f"<AdvisedOption {self.candidate.title} {number(self.prediction.seconds * 1e3)} ms>"

    @property
    def share_text(self) -> str:
        """In the words of `longca choose`: "98 % tie"."""
        return place_text(self.share, self.place, self.tied and self.fits)

    @property
    def quantiles(self) -> dict[float, float]:
        """Share of draws → the seconds that this share takes at most; {} for a mask that is not drawn."""
        import numpy as np

        times = list(self.by_seed.values())
        return {share: float(np.quantile(times, share)) for share in QUANTILES} if times else {}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        candidate = self.candidate
        made = self.prediction
        return {
            "method": candidate.title,
            "strategy": candidate.strategy,
            "params": dict(candidate.params),
            "kernel": candidate.kernel,
            "mesh": mesh_text(candidate.work),
            "how": candidate.how,
            "idle_gpus": candidate.num_idle,
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
            "place": self.place,
            "share_of_best": self.share,
            "tied_with_first": self.tied,
            "extrapolated": self.extrapolated,
        }


@dataclass(frozen=True, repr=False)
class Advice:
    """The answer. The option to take comes first, of those that fit into memory."""

    question: AdviceQuestion
    finding: str
    """the conclusion: the first option, those that intervals do not tell apart from it, and how sure that
    is"""
    options: tuple[AdvisedOption, ...]
    refused: dict[str, str]
    """by method, the reason why it cannot run"""
    assumptions: tuple[str, ...]
    """of intervals, beyond what records tell"""
    changes: tuple[str, ...]
    """what would put another option first"""
    draws_asked: int = 1
    defaults: Mapping[str, str] = field(default_factory=dict)
    """by the name of the command's option, the value of what was left out"""

    def __repr__(self) -> str:
        return f"<Advice: {self.finding}>"

    def _repr_html_(self) -> str:
        return _html(self)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the draws that were predicted; () for a mask that is not drawn."""
        return self.question.seeds

    @property
    def best(self) -> AdvisedOption:
        return self.options[0]

    @property
    def not_given(self) -> str:
        """The settings that were left out, with the values taken: "heads 64:8, dtype bf16"."""
        return ", ".join(f"{name} {value}" for name, value in self.defaults.items())

    @cached_property
    def measured(self) -> tuple[MeasuredBeside, ...]:
        """The measured cells of the nearest settings to the first options, where records have some."""
        return measured_beside(self.question, [option.candidate for option in self.options[:MOST_MEASURED]])

    @property
    def protocol(self) -> str:
        """How the calls that kernels are fitted on were timed, and whose numbers differ from that."""
        if self.question.fitted.rests:
            return "calls with rests of the GPU between them, as `longca choose` ranks most kernels"
        return (
            "calls one right after another, as in training; `longca choose` ranks by calls with rests where "
            "there are such, which are faster"
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
            "profile_assumed": question.assumed_profile,
            "ranks_per_node": question.network.ranks_per_node,
            "tokens": question.mask.seqlen_k,
            "new_tokens": question.mask.seqlen_q if question.has_context else None,
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
            "protocol": self.protocol,
            "defaults": dict(self.defaults),
            "options": [option.to_dict() for option in self.options],
            "refused": self.refused,
            "measured": [beside.to_dict() for beside in self.measured],
            "assumptions": list(self.assumptions),
            "changes": list(self.changes),
        }

    def study(self, count: int = 3) -> dict[str, Any]:
        """A study that measures the first options in all draws, as `longca run` reads it.

        Raises:
            UserError: no study can ask for the mask.
        """
        question = self.question
        grids = []
        mask = question.mask
        params = question.mask_params
        is_cut = mask.seqlen_q != mask.params.get("new_tokens", mask.seqlen_k)
        if not mask.name or is_cut or (mask.documents is not None and mask.origin is None):
            raise UserError(
                "A study cannot ask for this mask",
                why="it is made of bands or documents of your own",
                todo=(
                    "Make it with longca.build_mask from a corpus: `longca data build` makes one of your "
                    "lengths"
                ),
            )
        for option in self.options[:count]:
            candidate = option.candidate
            grid: dict[str, Any] = {
                "kernel": [candidate.kernel],
                "mask": [{mask.name: params} if params else mask.name],
                "seqlen": [mask.seqlen_k],
                "direction": list(question.directions),
                "heads": f"{question.call.num_q_heads}:{question.call.num_kv_heads}",
                "head_dim": question.call.head_dim,
                "dtype": question.call.dtype,
            }
            if question.has_context:
                grid["new_tokens"] = [mask.seqlen_q]
            if question.corpus is not None:
                grid["corpus"] = question.corpus
            if self.seeds:
                grid["seed"] = list(self.seeds)
            if candidate.strategy is not None:
                grid |= {
                    "kind": "cp",
                    "world": question.gpus,
                    "strategy": [
                        {candidate.strategy: dict(candidate.params)}
                        if candidate.params
                        else candidate.strategy
                    ],
                }
            grids.append(grid)
        messages = "symmetric" if "copy-engines" in question.network.name else "nccl"
        return {
            "title": "The first options of `longca advise`",
            "measure": {"messages": messages},
            "grids": grids,
        }


def _html(advice: Advice) -> str:
    """The finding, the setting, the first options as a table, and the assumptions."""
    columns = ["method", "ms", "90 %", "TFLOP/s a GPU", "of best", "memory", "limited by"]
    several = len(advice.seeds) > 1
    if several:
        columns.insert(3, f"first in, of {len(advice.seeds)}")
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = []
    for option in advice.options[:MOST_ROWS]:
        forecast = option.prediction
        cells = [
            option.candidate.title,
            number(forecast.seconds * 1e3),
            f"{number(option.low_s * 1e3)}–{number(option.high_s * 1e3)}",
            *([str(option.first_in)] if several else []),
            number(option.tflops),
            option.share_text,
            format_bytes(forecast.memory_bytes),
            forecast.limit,
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    left = len(advice.options) - len(rows)
    more = f"<p>{left} more in <code>options</code>.</p>" if left else ""
    assumed = "".join(f"<li>{escape(text)}</li>" for text in advice.assumptions)
    left_out = f"<p>Not given: {escape(advice.not_given)}.</p>" if advice.defaults else ""
    profile = advice.question.assumed_profile
    profile = f"<p>Assumed: {escape(profile)}.</p>" if profile else ""
    measured = "".join(f"<p>{escape(str(beside))}.</p>" for beside in advice.measured)
    messages = f"; messages by {advice.question.network.name}" if advice.question.gpus > 1 else ""
    return (
        f"<p><b>{escape(advice.finding)}</b></p><p>{escape(advice.question.setting)}{escape(messages)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
        f"<p>Times are of {escape(advice.protocol)}.</p>{left_out}{profile}{measured}"
        + (f"<p>Assumed:</p><ul>{assumed}</ul>" if assumed else "")
    )
