"""The profile that a probe's measurements give: latency and rate of messages by least squares, and by how
much intervals are wider."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from longca.core import Network, load_hardware
from longca.cp.forecast import PROFILES
from longca.predict.fit import non_negative

ASSUMED = PROFILES["symmetric"]  # whose numbers between nodes stand in where one node was probed
USUAL_SPREAD = 0.02  # of samples over their median: a quiet machine has less
BUSY = 2.0  # times as wide are intervals where others used the machine meanwhile
MOST_WIDER = 6.0
LEAST = 1e-3  # of a number that must be more than nothing


@dataclass(frozen=True)
class TimedMessage:
    """One size of message that every rank sent to another one at once."""

    num_bytes: int
    seconds: float
    spread: float
    """of the samples: their middle half over the median"""
    beside: float | None = None
    """time that a matrix product lost beside it, over the message's own; None where that was not measured"""


@dataclass(frozen=True)
class TimedKernel:
    """One kernel call on one GPU."""

    kernel: str
    direction: str
    mask: str
    seqlen: int
    seconds: float
    predicted_s: float
    """by the fitted kernels of the project's records"""
    spread: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.predicted_s


@dataclass(frozen=True)
class ProbeResult:
    """All that one probe measured; the same on every rank."""

    world: int
    ranks_per_node: int
    device: str
    """as the driver names it; "cpu" on a CPU"""
    intra: Mapping[str, Sequence[TimedMessage]] = field(default_factory=dict)
    """by the way that messages go: nccl, gloo, copy-engines"""
    inter: Mapping[str, Sequence[TimedMessage]] = field(default_factory=dict)
    kernels: Sequence[TimedKernel] = ()
    launch_us: float = 0.0
    """the host's time to launch a kernel"""
    disturbance: str = ""
    """what others did meanwhile"""
    notes: Sequence[str] = ()

    @property
    def wider(self) -> float:
        """The factor by which intervals are wider than those of the project's records."""
        spreads = [
            timed.spread for messages in (*self.intra.values(), *self.inter.values()) for timed in messages
        ]
        spreads += [timed.spread for timed in self.kernels]
        noisy = max(median(spreads) / USUAL_SPREAD, 1.0) if spreads else 1.0
        return min(round(noisy * (BUSY if self.disturbance else 1.0), 2), MOST_WIDER)

    @property
    def kernel_ratios(self) -> dict[str, float]:
        """Time over the fitted one by "kernel direction": the median over calls."""
        found: dict[str, list[float]] = {}
        for timed in self.kernels:
            found.setdefault(f"{timed.kernel} {timed.direction}", []).append(timed.ratio)
        return {name: round(median(ratios), 4) for name, ratios in found.items()}


def fit_messages(messages: Sequence[TimedMessage]) -> tuple[float, float]:
    """(microseconds of a message in addition to its bytes, 10^9 bytes a second): least squares on relative
    errors, neither negative."""
    seconds = np.array([message.seconds for message in messages])
    columns = (
        np.stack([np.ones(len(messages)), [message.num_bytes for message in messages]], axis=1)
        / seconds[:, None]
    )
    (latency_s, byte_s), _ = non_negative(columns, np.ones(len(messages)))
    return max(latency_s * 1e6, LEAST), 1e-9 / byte_s if byte_s else 1e6


def networks_of(result: ProbeResult, today: datetime.date | None = None) -> list[dict[str, Any]]:
    """The profiles, as `config/hardware.yaml` has them: one for each way that messages went, the quickest
    first."""
    assumed = next(network for network in load_hardware().networks if network.name == ASSUMED)
    source = f"longca probe on {result.world} ranks, {today or datetime.datetime.now(datetime.UTC).date()}"
    model = load_hardware().find(result.device)
    networks = []
    for way in result.intra or {"alone": ()}:
        messages = result.intra.get(way, ())
        us, gb_s = fit_messages(messages) if messages else (assumed.intra_us.value, assumed.intra_gb_s.value)
        lost = [message.beside for message in messages if message.beside is not None]
        between = result.inter.get(way)
        far_us, far_gb_s = (
            fit_messages(between) if between else (assumed.inter_us.value, assumed.inter_gb_s.value)
        )
        not_probed = "assumed: one GPU was probed, and no messages" if not messages else ""
        one_node = f"assumed: one node was probed; {assumed.inter_gb_s.source.removeprefix('assumed: ')}"
        content = {
            "name": f"probed-{way}",
            "summary": f"{result.world} × {result.device}, messages by {way}",
            "gpu": model.name if model else result.device,
            "ranks_per_node": result.ranks_per_node,
            "intra_gb_s": _stated(gb_s, not_probed or source),
            "inter_gb_s": _stated(far_gb_s, source if between else one_node),
            "intra_us": _stated(us, not_probed or source),
            "inter_us": _stated(far_us, source if between else one_node),
            "overlap": _stated(min(max(median(lost), LEAST), 1.0), source)
            if lost
            else _stated(assumed.overlap.value, "assumed: as on an H200, since nothing was overlapped"),
            "measured": bool(messages),
            "kernel_ratio": result.kernel_ratios,
            "wider": result.wider,
        }
        networks.append(Network.model_validate(content).model_dump(mode="json"))
    return sorted(networks, key=lambda network: -network["intra_gb_s"]["value"])


def _stated(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}
