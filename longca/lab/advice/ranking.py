"""Advice: all ways to run a call, ranked by predicted time, with intervals, and what would change their
order.

For a mask that is drawn, times are means over several draws, and an interval holds them all. A prediction
that no record supports counts with the slow end of its interval beside one that records support: see
`longca.lab.advice.draws`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.core import UserError, format_length
from longca.cp.forecast import links_of
from longca.cp.partition import draws_alike
from longca.lab.advice.answer import Advice, AdvisedOption
from longca.lab.advice.draws import (
    NETWORK_RANGE,
    changed_speeds,
    extrapolations,
    forecast_draws,
    interval_s,
    is_lent,
    is_tied,
    widening,
    with_range,
)
from longca.lab.advice.question import OTHER_GPU_WIDER, question_of
from longca.lab.advice.sentences import finding
from longca.lab.store.text import format_bytes, names, number, plural
from longca.lab.studies import refuse_option_names
from longca.masks import Mask

if TYPE_CHECKING:
    from longca.core import Scalar
    from longca.lab.advice.answer import AdvisedOption
    from longca.lab.advice.draws import DrawForecasts, WayForecasts
    from longca.lab.advice.question import AdviceQuestion
    from longca.predict.fitted import FittedKernels

COMPARED = 8  # options whose order is looked at when something changes


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


def assumptions(question: AdviceQuestion, kernels: Sequence[str]) -> list[str]:
    """The assumptions of an answer with these kernels beyond records, a sentence each."""
    network = question.network
    call = question.call
    texts = []
    if network.wider > 1:
        texts.append(
            f"the machine was busy or unsteady while it was probed: intervals are {network.wider:g} times as "
            f"wide"
        )
    lent = [name for name in kernels if is_lent(name, question)]
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
    models = [question.model(name, way) for name in kernels for way in question.directions]
    lengths = [model.longest_tokens for model in models if model is not None]
    if question.gpus == 1 and lengths and question.mask.seqlen_k > max(lengths):
        texts.append(
            f"{format_length(question.mask.seqlen_k)} tokens: records end at {format_length(max(lengths))}"
        )
    if question.has_context:
        texts.append(
            f"{format_length(question.mask.seqlen_q)} new tokens after a context: kernels are fitted on as "
            "many queries as keys"
        )
    grid = question.mask.grid
    if grid is not None and question.mask.origin is not None and draws_alike(question.mask):
        texts.append(f"one draw: it has {grid.visible.size:,} blocks, so that others take the same time")
    other = [pair for pair in question.fitted.other_protocol if pair.split()[0] in kernels]
    if other:
        usual, rest = ("with", "without") if question.fitted.rests else ("without", "with")
        texts.append(f"{names(other)}: fitted on calls {rest} rests of the GPU, the others on calls {usual}")
    return texts


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
        seconds, place = min(
            (forecasts.mean_seconds(way, speed), place) for place, way in enumerate(ways[:COMPARED])
        )
        if place:
            texts.append(
                f"with {what}, {ways[place].candidate.title} would be first, at {number(seconds * 1e3)} ms"
            )
    return tuple(texts)


def advise(
    mask: Mask | str,
    *,
    gpus: int | None = None,
    seqlen: int | str | None = None,
    new_tokens: int | str | None = None,
    corpus: str | None = None,
    seed: int | None = None,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    direction: str | None = None,
    profile: str | None = None,
    gpu: str | None = None,
    memory_bytes: float | None = None,
    ranks_per_node: int | None = None,
    kernels: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    fitted: FittedKernels | None = None,
    draws: int | None = None,
    **params: Scalar,
) -> Advice:
    """Ranks the ways to run an attention call by their predicted time. It needs no GPU.

    Arguments that are left out get the values of most records, as in `longca.choose` and in studies;
    `defaults` of the answer names them.

    Args:
        mask: of the whole sequence, or a pattern's name. If it was drawn, others are drawn like it, with the
            seeds after its own.
        gpus: over which the sequence is divided; 1, the default, ranks kernels.
        seqlen, corpus, seed, params: of the mask, for a pattern's name: tokens over all GPUs (32K), source of
            document lengths (the usual one for that length), seed of the first draw (0), and parameters.
        new_tokens: of a pattern's name, too: queries, which are the last tokens of a longer context.
        num_q_heads, num_kv_heads: 64 and 8 if neither is given, or the head groups of a mask that has
            several; as many KV heads as query heads if only these are given.
        head_dim, dtype: 128 and bf16 if not given.
        direction: `fwd`, `bwd`, or `both` as in training, the default, which `fwd+bwd` is another name of.
        profile: of messages, a name in `config/hardware.yaml`; that of the GPU if not given, and the answer
            says so.
        gpu: model of GPU in that file; the one of the profile if not given. Without records of it, kernels
            are scaled by its peak.
        memory_bytes: of a GPU, that may be used; all of it if not given.
        ranks_per_node: GPUs of a node, instead of those of the profile.
        kernels, strategies: names; those that are worth comparing if not given. A strategy may have
            parameters and a kernel, as in answers: "usp[heads=2]+band".
        fitted: models of kernels; those of the project's records if not given.
        draws: sequences that times are predicted for, of a mask that is drawn; 8 if not given. Fewer, if the
            first three are alike.

    Raises:
        UserError: an argument cannot be used, nothing can run this call, or nothing fits into memory.
    """
    refuse_option_names(params)
    of_mask = mask if isinstance(mask, Mask) else None
    question = question_of(
        mask,
        gpus=gpus,
        seqlen=seqlen,
        new_tokens=new_tokens,
        corpus=corpus,
        seed=seed,
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
        params=params,
    )
    links = links_of(question.network)
    speeds = with_range(links) if question.gpus > links.ranks_per_node else [links]
    changed = changed_speeds(links, question.gpus)
    forecasts = forecast_draws(question, [*speeds, *(changed_links for _, changed_links in changed)])
    if not forecasts.ways:
        name, reason = next(iter(forecasts.refused.items()), ("", "there is no kernel to ask"))
        raise UserError(
            f"No strategy and kernel can run this call on {plural(question.gpus, 'GPU')}",
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
    used = {option.candidate.kernel for option in options}
    answered = replace(question, seeds=question.seeds[: forecasts.num_draws])
    given = {
        **params,
        "mask": of_mask,
        "tokens": of_mask or seqlen,
        "gpus": gpus,
        "heads": num_q_heads or num_kv_heads,
        "head_dim": head_dim,
        "dtype": dtype,
        "direction": direction,
        "corpus": of_mask or corpus,
        "seed": of_mask or seed,
        "draws": draws,
        "profile": profile,
        "gpu": gpu,
        "node": ranks_per_node,
    }
    sentence = finding(answered, options, question.num_draws)
    return Advice(
        answered,
        sentence,
        options,
        forecasts.refused,
        tuple(assumptions(question, [name for name in question.kernels if name in used])),
        others,
        question.num_draws,
        left_out(answered, given),
    )


def left_out(question: AdviceQuestion, given: Mapping[str, object]) -> dict[str, str]:
    """The values taken for what was left out, by the names of the command's options and of the mask's
    parameters.

    Args:
        given: by these names, the arguments; None stands for one that was left out.
    """
    call = question.call
    one_gpu = question.gpus == 1
    taken = {
        "tokens": format_length(question.mask.seqlen_k),
        "gpus": question.gpus,
        "heads": f"{call.num_q_heads}:{call.num_kv_heads}",
        "head_dim": call.head_dim,
        "dtype": call.dtype,
        "direction": " and ".join(question.directions),
        "corpus": question.corpus,
        "seed": question.seeds[0] if question.seeds else None,
        "draws": question.num_draws if question.seeds else None,
        "profile": None if one_gpu else question.network.name,
        "gpu": question.gpu.name,
        "node": None if one_gpu else question.network.ranks_per_node,
    }
    if given.get("mask") is None:  # then a pattern's name was, and perhaps parameters of it
        taken |= {name: value for name, value in question.mask_params.items() if value is not False}
    return {
        name: str(value) for name, value in taken.items() if value is not None and given.get(name) is None
    }


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
    best_s = built[id(ordered[0])].prediction.seconds

    def placed(way: WayForecasts, at: int) -> AdvisedOption:
        option = built[id(way)]
        tied = is_tied(way, ordered[0], forecasts, question)
        return replace(option, tied=tied, place=at, share=min(best_s / option.prediction.seconds, 1.0))

    return [(way, placed(way, at)) for at, way in enumerate(ordered, 1)]


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
