"""One way to run a call, predicted: strategy, mesh, kernel; its time, bytes and memory, and what limits
it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from longca.core import Registry
from longca.cp import HeadStrategy
from longca.cp.forecast import PASS_EFFICIENCY, CallForecast, DeviceModel, WorkForecast, links_of
from longca.cp.paper_style_forecast import GATHER, RING, forecast_paper_style
from longca.cp.partition import Mesh
from longca.cp.schedule import describe_chunks
from longca.predict.fitted import whole_statistics

if TYPE_CHECKING:
    from longca.core import CallSpec, Scalar
    from longca.cp.schedule import LinkSpeeds, WorkPartition
    from longca.kernels import Kernel
    from longca.lab.advice.question import AdviceQuestion

SINGLE = "one GPU"
LARGE = 0.05  # share of time from which on a loss is named


@dataclass(frozen=True)
class Candidate:
    """A strategy with its parameters and a kernel, and the work partition that the engine would run."""

    strategy: str | None
    """None on one GPU"""
    params: tuple[tuple[str, Scalar], ...]
    kernel: str
    work: WorkPartition | None = field(repr=False)
    """None on one GPU, and of the study's own schedules"""
    forecasts: dict[Hashable, WorkForecast] = field(default_factory=dict, compare=False, repr=False)
    """those made so far, which other speeds of messages share"""

    @property
    def title(self) -> str:
        if self.strategy is None:
            return self.kernel
        params = ",".join(f"{key}={value}" for key, value in self.params)
        return f"{self.strategy}[{params}]+{self.kernel}" if params else f"{self.strategy}+{self.kernel}"

    @property
    def plan_key(self) -> tuple[str, str]:
        """Equal for candidates that run the same plan."""
        return self.kernel, self.how if self.work is not None else str(self.strategy)

    @property
    def num_idle(self) -> int:
        """GPUs that it leaves without work; of the study's own schedules none."""
        return 0 if self.work is None else self.work.num_idle

    @property
    def how(self) -> str:
        """Mesh, schedule, chunks of heads and sharding, as the notes of a record have them."""
        if self.work is None:
            return SINGLE if self.strategy is None else "documents padded to chunks of equal length"
        mesh = self.work.mesh
        plan = self.work.plan
        facts = [
            f"{plan.schedule} of {mesh.ring}" if mesh.ring > 1 else "",
            f"heads among {mesh.heads}" if mesh.heads > 1 else "",
            f"in chunks of {describe_chunks(self.work.chunks)}" if len(self.work.chunks) > 1 else "",
            f"tokens: {plan.sharding.name}" if mesh.ring > 1 else "",
            f"{self.num_idle} of {mesh.ring * mesh.heads} GPUs idle" if self.num_idle else "",
        ]
        return ", ".join(filter(None, facts))


@dataclass(frozen=True)
class OptionForecast:
    """All directions of one candidate together; shares are of the whole time."""

    seconds: float
    by_direction: dict[str, float]
    memory_bytes: float
    sent_bytes: float
    inter_node_bytes: float
    imbalance: float
    exposed: float
    waste: float
    num_calls: int
    slowdown: float
    straggler: float
    """by how much the slowest rank takes longer than the median rank"""

    @property
    def limit(self) -> str:
        """The largest cost beside the visible pairs, with its share of the time."""
        losses = {
            "messages": self.exposed,
            "imbalance": self.imbalance,
            "tile waste": self.waste,
            "power limit": 1 - 1 / self.slowdown,
        }
        name, most = max(losses.items(), key=lambda item: item[1])
        return f"{name}, {100 * most:.0f} %" if most >= LARGE else "the kernel"


def candidates(
    question: AdviceQuestion, without: Collection[str] = ()
) -> tuple[list[Candidate], dict[str, str]]:
    """(the ways that can run, the reasons of those that cannot by title). Several ways may have made one
    plan.

    Args:
        without: titles of ways that are not asked for.
    """
    if question.gpus == 1:
        return _single(question, without)
    found: list[Candidate] = []
    refused: dict[str, str] = {}
    shared: dict[Any, Any] = {}  # plans: strategies that divide the tokens alike plan a mask once
    plugins = sorted(
        (Registry("strategy").load(name) for name in question.strategies),
        key=lambda strategy: (
            len(strategy.Params.model_fields),
            strategy.name == "loongtrain",
            strategy.name,
        ),
    )
    for kernel_name in question.kernels:
        kernel = Registry("kernel").load(kernel_name)
        unfitted = _unfitted(question, kernel_name)
        ways = [(plugin, params) for plugin in plugins for params in _asked(plugin, kernel_name, question)]
        for plugin, params in sorted(
            ways, key=lambda way: len(way[1])
        ):  # what strategies choose by themselves comes first
            candidate = Candidate(plugin.name, tuple(params.items()), kernel_name, None)
            if candidate.title in without:
                continue
            candidate, reason = (
                (candidate, unfitted)
                if unfitted is not None
                else _planned(candidate, plugin, kernel, question, shared)
            )
            if reason is not None:
                refused[candidate.title] = reason
            else:
                found.append(candidate)
    return found, refused


def candidate_of(
    question: AdviceQuestion,
    strategy: str,
    kernel: str,
    shared: dict[Any, Any],
    params: Mapping[str, Scalar] | None = None,
) -> Candidate | str:
    """One strategy, or the reason why it cannot run.

    Args:
        params: of the strategy; what is not given it chooses by itself.
        shared: plans of strategies that divide the tokens alike; its own are added.
    """
    candidate = Candidate(strategy, tuple((params or {}).items()), kernel, None)
    made, reason = _planned(
        candidate, Registry("strategy").load(strategy), Registry("kernel").load(kernel), question, shared
    )
    refused = reason or _unfitted(question, kernel)
    return made if refused is None else refused


def _planned(
    candidate: Candidate, plugin: Any, kernel: Kernel, question: AdviceQuestion, shared: dict[Any, Any]
) -> tuple[Candidate, str | None]:
    """(the candidate with its work partition, the reason why it cannot run)."""
    if plugin.baseline and plugin.name not in (RING, GATHER):
        return candidate, "its own package sends and computes: there is no model of it"
    if not isinstance(plugin, HeadStrategy):
        return candidate, None
    strategy = plugin.with_params(dict(candidate.params))
    strategy.share_plans(shared)
    reason = strategy.refusal(question.mask, question.call, question.gpus, kernel, "cuda")
    if reason is not None:
        return candidate, reason
    return replace(
        candidate, work=strategy.partition_call(question.mask, question.call, question.gpus, kernel, "cuda")
    ), None


def _single(question: AdviceQuestion, without: Collection[str]) -> tuple[list[Candidate], dict[str, str]]:
    candidates = []
    refused = {}
    for name in question.kernels:
        if name in without:
            continue
        kernel: Kernel = Registry("kernel").load(name)
        reason = kernel.supports(question.call, question.mask.traits, "cuda") or _unfitted(question, name)
        if reason is None:
            candidates.append(Candidate(None, (), name, None))
        else:
            refused[name] = reason
    return candidates, refused


def _unfitted(question: AdviceQuestion, kernel: str) -> str | None:
    lacking = [way for way in question.directions if question.model(kernel, way) is None]
    return f"too few records of such a call {' and '.join(lacking)}" if lacking else None


def _asked(plugin: Any, kernel: str, question: AdviceQuestion) -> list[dict[str, Scalar]]:
    """The parameters of a strategy that are asked for over a kernel, each once."""
    if not question.asked.ways:
        return list(_variants(plugin, question.gpus, question.call))
    asked = [
        variant
        for way in question.asked.ways
        if (way.strategy, way.kernel) == (plugin.name, kernel)
        for variant in (
            _variants(plugin, question.gpus, question.call) if way.params is None else (dict(way.params),)
        )
    ]
    return [variant for number, variant in enumerate(asked) if variant not in asked[:number]]


def _variants(plugin: Any, world: int, call: CallSpec) -> Iterator[dict[str, Scalar]]:
    """The strategy's own choice first, then each size of its head groups that divides ranks and KV heads."""
    yield {}
    if "heads" in plugin.Params.model_fields:
        for heads in range(2, min(world, call.num_kv_heads) + 1):
            if world % heads == 0 and call.num_kv_heads % heads == 0 and heads < world:
                yield {"heads": heads}


def predict(candidate: Candidate, question: AdviceQuestion) -> OptionForecast:
    """Predicts a candidate with the messages of the question's profile."""
    return predict_each(candidate, question, [links_of(question.network)])[0]


def predict_each(
    candidate: Candidate, question: AdviceQuestion, speeds: Sequence[LinkSpeeds]
) -> list[OptionForecast]:
    """Predicts a candidate under each of these speeds of messages."""
    by_direction = [_forecasts(candidate, question, direction, speeds) for direction in question.directions]
    return [_together(question.directions, parts) for parts in zip(*by_direction, strict=True)]


def _together(directions: Sequence[str], parts: Sequence[CallForecast]) -> OptionForecast:
    """The forecasts of these directions as one."""
    total = sum(part.seconds for part in parts)

    def share(values: Sequence[float]) -> float:
        return (
            sum(value * part.seconds for value, part in zip(values, parts, strict=True)) / total
            if total
            else 0.0
        )

    return OptionForecast(
        total,
        {way: part.seconds for way, part in zip(directions, parts, strict=True)},
        max(part.memory_bytes for part in parts),
        sum(part.sent_bytes for part in parts),
        sum(part.inter_node_bytes for part in parts),
        share([part.imbalance for part in parts]),
        share([part.exposed for part in parts]),
        share([part.waste for part in parts]),
        sum(part.num_calls for part in parts),
        share([part.slowdown for part in parts]),
        share([part.straggler for part in parts]),
    )


def mean_forecast(parts: Sequence[OptionForecast], factor: float = 1.0) -> OptionForecast:
    """The forecasts of several draws as one: mean times and amounts, the largest memory, shares of the whole
    time.

    Args:
        factor: of all times.
    """
    total = sum(part.seconds for part in parts)

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(parts)

    def share(values: Iterable[float]) -> float:
        return (
            sum(value * part.seconds for value, part in zip(values, parts, strict=True)) / total
            if total
            else 0.0
        )

    ways = {way: mean(part.by_direction[way] for part in parts) * factor for way in parts[0].by_direction}
    return OptionForecast(
        mean(part.seconds for part in parts) * factor,
        ways,
        max(part.memory_bytes for part in parts),
        mean(part.sent_bytes for part in parts),
        mean(part.inter_node_bytes for part in parts),
        share(part.imbalance for part in parts),
        share(part.exposed for part in parts),
        share(part.waste for part in parts),
        max(part.num_calls for part in parts),
        share(part.slowdown for part in parts),
        share(part.straggler for part in parts),
    )


def _forecasts(
    candidate: Candidate, question: AdviceQuestion, direction: str, speeds: Sequence[LinkSpeeds]
) -> list[CallForecast]:
    """The forecast of one direction under each of these speeds."""
    model = question.model(candidate.kernel, direction)
    call = replace(question.call, direction=direction)
    assert model is not None, "`candidates` has asked"
    device = DeviceModel(
        model,
        question.gpu.bandwidth_gb_s.value * 1e9 * PASS_EFFICIENCY,
        Registry("kernel").load(candidate.kernel).merges,
    )
    if candidate.strategy is None:
        return [_alone(question, call, device)] * len(speeds)
    if candidate.work is None:
        return [
            forecast_paper_style(candidate.strategy, question.mask, call, question.gpus, device, links)
            for links in speeds
        ]
    packs = speeds[0].packs
    key = direction, packs, question.gpu.name, question.network.name, id(question.fitted)
    if key not in candidate.forecasts:
        candidate.forecasts[key] = WorkForecast(candidate.work, call, device, packs=packs)
    return candidate.forecasts[key].at_each(speeds)


def _alone(question: AdviceQuestion, call: CallSpec, device: DeviceModel) -> CallForecast:
    import numpy as np

    from longca.cp.schedule import RankTimes

    model = device.kernel.for_call(question.mask, call.num_kv_heads)
    statistics = whole_statistics(question.mask, model.shape, call.num_q_heads // call.num_kv_heads)
    seconds = np.full(
        (1, 1), device.kernel.seconds(question.mask, call.num_q_heads, call.num_kv_heads, call.head_dim)
    )
    at_boost = float(seconds[0, 0]) / (1 + model.throttle)
    mask = question.mask
    rows = mask.seqlen_q * call.num_q_heads + mask.seqlen_k * call.num_kv_heads
    tensors = 2 * rows * call.head_dim * call.elem_bytes * (2 if call.direction == "bwd" else 1)
    buffers = Registry("kernel").load(model.kernel).buffer_bytes(call, question.mask)
    return CallForecast(
        RankTimes(seconds, seconds, seconds),
        float(model.slowdown(at_boost)),
        1,
        statistics.waste,
        0.0,
        0.0,
        tensors + buffers,
    )


def mesh_text(work: WorkPartition | None) -> str:
    """The mesh of a work partition: "ring 4 × heads 2"."""
    mesh = work.mesh if work is not None else Mesh(1)
    return f"ring {mesh.ring} × heads {mesh.heads}"
