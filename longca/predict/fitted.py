"""Models of the time of kernels, fitted on records and stored as JSON.

The time of a call is a sum of a few costs times the amounts of the call, with the slowdown of long calls by
the clock:

    time at full clock = Σ cost · amount          amounts: FEATURES, costs: never negative, fitted on records
    time               = time at full clock · slowdown        1 for short calls, `1 + throttle` for long ones

A GPU keeps its highest clock for a few milliseconds. Then the power limit slows all computation by about the
same factor, for any kernel:

    slowdown   1 + throttle │                 ┌───────
                            │             ╱
                          1 │────────┘
                            └────────┴────────┴──────── time at full clock
                                  BOOST_S   SETTLED_S

A kernel with several algorithms has a model for each (`KernelModel.way`). All other kernels have one unnamed
model.

`models/` has a file for each device with committed records; `python -m tools.fitted` makes them. Other
records can be fitted in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.core import UserError
from longca.predict.kernel import FEATURES, TileShape, amounts, covers_all, items_of, tile_statistics, way_of

if TYPE_CHECKING:
    from longca.masks import Mask, Traits
    from longca.predict.kernel import TileStatistics

FITTED_HEAD_DIM = 128
LONG_ROWS = 0.25
BY_PEAK = "share of peak"  # the source of a model that is of another GPU
# share of held-out residuals in an interval, such that it contains 90 % of other cells, as
# `benchmarks.predict.errors` checks
NOMINAL = 0.96
# of an H200, the same for all kernels and both directions: see docs/results/h200/prediction.md
BOOST_S = 6e-3
SETTLED_S = 24e-3


def form_labels(traits: Traits, heads_per_kv: int) -> dict[str, str]:
    """The labels of a call, for which some kernels have special algorithms.

    "long": a query sees a quarter of all keys or more, in bands. "packed": the mask is segments of tokens
    under one window, for which kernels need no tile lists.
    """
    seen = traits.area / max(traits.num_groups * traits.seqlen_q * traits.seqlen_k, 1)
    return {
        "plain": "plain" if traits.full or traits.causal else "masked",
        "rows": "long" if seen >= LONG_ROWS and not traits.is_block_grid else "short",
        "heads": "grouped" if heads_per_kv > 1 else "equal",
        "lists": "packed" if traits.num_segments or traits.full else "listed",
        "blocks": "blocks" if traits.is_block_grid else "bands",
    }


def part_kind(traits: Traits) -> str:
    """The kind of a mask, in the plural, whose parts kernels attend to in context parallelism: "windows"."""
    if traits.is_block_grid:
        return "blocks"
    if traits.full or traits.causal:
        return "full or causal masks"
    if traits.num_segments > 1:
        return "documents"
    return "windows" if traits.num_segments else "other bands"


@dataclass(frozen=True)
class Interval:
    """Relative residuals of records held out of the fit: measured over predicted, minus 1."""

    low: float
    high: float
    """bounds that contain NOMINAL of the residuals"""
    median: float
    """median of their absolute values"""
    p95: float
    num_records: int

    @classmethod
    def of(cls, residuals: Sequence[float] | np.ndarray, coverage: float = NOMINAL) -> Interval:
        """The interval of these residuals, with equal numbers below and above."""
        values = np.sort(np.asarray(residuals, dtype=float))
        low, high = np.quantile(values, [(1 - coverage) / 2, (1 + coverage) / 2])
        size = np.abs(values)
        return cls(
            float(low), float(high), float(np.median(size)), float(np.quantile(size, 0.95)), len(values)
        )

    def widened(self, factor: float) -> Interval:
        """The interval scaled about its centre by this factor."""
        centre = (self.low + self.high) / 2
        half = (self.high - self.low) / 2 * factor
        return Interval(max(centre - half, -0.95), centre + half, self.median, self.p95, self.num_records)


def widest(intervals: Sequence[Interval]) -> Interval:
    """The union of these intervals."""
    return Interval(
        min(interval.low for interval in intervals),
        max(interval.high for interval in intervals),
        max(interval.median for interval in intervals),
        max(interval.p95 for interval in intervals),
        min(interval.num_records for interval in intervals),
    )


@dataclass(frozen=True)
class KernelModel:
    """The fitted costs of one kernel in one direction."""

    kernel: str
    direction: str
    shape: TileShape
    """the best-fitting tiles, which may differ from the kernel's own"""
    costs_ms: Mapping[str, float]
    """milliseconds for one of each of FEATURES"""
    throttle: float
    """slowdown of long calls at the clock under the power limit"""
    by_mask: Interval
    """residuals of held-out masks"""
    by_length: Interval
    """residuals of held-out lengths"""
    longest_tokens: int
    """the largest length among the records"""
    form: tuple[str, ...] = ()
    """the calls of this model, by labels of `form_labels`; all calls if empty"""
    way: str = ""
    """the kernel's algorithm of this model, of `longca.predict.kernel`"""
    source: str = "records"
    """`records`, or `share of peak` without records"""

    def boosted_s(self, amounts: np.ndarray, head_dim: int = FITTED_HEAD_DIM) -> np.ndarray:
        """Seconds at full clock, (…,), of calls with these amounts (…, 6). All costs except that of the call
        itself scale with the head dim."""
        costs = self._costs.copy()
        costs[:-1] *= head_dim / FITTED_HEAD_DIM
        return amounts @ costs / 1e3

    @cached_property
    def _costs(self) -> np.ndarray:
        """`costs_ms` in the order of FEATURES."""
        return np.array([self.costs_ms[name] for name in FEATURES])

    def slowdown(self, boosted_s: np.ndarray | float) -> np.ndarray | float:
        """The slowdown of work of this many seconds at full clock."""
        return clock_slowdown(boosted_s, self.throttle)


def clock_slowdown(boosted_s: np.ndarray | float, throttle: float) -> np.ndarray | float:
    """`KernelModel.slowdown` for a given throttle."""
    progress = np.log(np.maximum(boosted_s, BOOST_S) / BOOST_S) / np.log(SETTLED_S / BOOST_S)
    return 1 + throttle * np.minimum(progress, 1)


@dataclass(frozen=True)
class CallModel:
    """The models of one kernel in one direction for calls of one form: one for each of its algorithms."""

    ways: tuple[KernelModel, ...]

    @property
    def usual(self) -> KernelModel:
        """The model with the most records."""
        return max(self.ways, key=lambda model: model.by_mask.num_records)

    @property
    def residuals(self) -> Interval:
        """Held-out residuals of all algorithms, by mask."""
        return widest([model.by_mask for model in self.ways])

    @property
    def longest_tokens(self) -> int:
        return max(model.longest_tokens for model in self.ways)

    def scaled(self, ratio: float, source: str, wider: float) -> CallModel:
        """The same kernel on a GPU on which all costs are `ratio` times as large, with intervals `wider`
        times as wide."""
        return CallModel(
            tuple(
                replace(
                    model,
                    costs_ms={name: value * ratio for name, value in model.costs_ms.items()},
                    source=source,
                    by_mask=model.by_mask.widened(wider),
                )
                for model in self.ways
            )
        )

    def of(self, way: str) -> KernelModel:
        """The model of an algorithm; the model of another one if this one has too few records."""
        return next((model for model in self.ways if model.way == way), self.usual)

    def for_call(self, mask: Mask, num_kv_heads: int) -> KernelModel:
        """The model of the algorithm of a whole call."""
        return self.of(way_of(self.usual.kernel, self.usual.direction, mask, num_kv_heads))

    def seconds(
        self, mask: Mask, num_q_heads: int, num_kv_heads: int, head_dim: int = FITTED_HEAD_DIM
    ) -> float:
        """Seconds of one call without other work on the GPU."""
        model = self.for_call(mask, num_kv_heads)
        at_full_clock = float(model.boosted_s(call_amounts(model, mask, num_q_heads, num_kv_heads), head_dim))
        return at_full_clock * float(model.slowdown(at_full_clock))


def whole_statistics(mask: Mask, shape: TileShape, heads_per_kv: int) -> TileStatistics:
    """The tiles of a mask, counted once for each mask."""
    key = "tile statistics", shape, heads_per_kv
    if key not in mask.kept:
        mask.kept[key] = tile_statistics(mask, shape, heads_per_kv)
    return mask.kept[key]


def call_amounts(model: KernelModel, mask: Mask, num_q_heads: int, num_kv_heads: int) -> np.ndarray:
    """`amounts` of a whole call of a model's kernel, (6,)."""
    statistics = whole_statistics(mask, model.shape, num_q_heads // num_kv_heads)
    return amounts(
        statistics,
        model.shape,
        items_of(model.kernel, model.direction, model.way),
        num_q_heads,
        num_kv_heads,
        covered=covers_all(model.kernel, model.direction, mask.traits),
    )


FOLDER = Path(__file__).parent / "models"
REFERENCE = FOLDER / "h200.json"  # has the most kernels: predictions for other GPUs are scaled from it


@dataclass(frozen=True)
class FittedKernels:
    """The models of all kernels with records on one device."""

    device: str
    """as the driver names it"""
    records: tuple[str, ...]
    """the files with the fitted records"""
    models: tuple[KernelModel, ...]
    ranks: int = 1
    """of the largest world among the records"""
    strategies: Mapping[str, Interval] = field(default_factory=dict)
    """by strategy, residuals of records of context parallelism; empty if these were not evaluated"""
    rests: bool = False
    """protocol of the records: with a rest of the GPU after each call; `other_protocol` names the
    exceptions"""
    other_protocol: tuple[str, ...] = ()
    """kernels with directions, "fa3 fwd", that have enough records of the other protocol only"""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by kernel, the kinds of masks (`part_kind`) in whose parts it ran in records of context parallelism;
    empty if these were not evaluated"""

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], list[KernelModel]]:
        by_name: dict[tuple[str, str], list[KernelModel]] = {}
        for model in self.models:
            by_name.setdefault((model.kernel, model.direction), []).append(model)
        return by_name

    def find(self, kernel: str, direction: str, traits: Traits, heads_per_kv: int) -> CallModel | None:
        """The model of a kernel in one direction for a mask with these traits; None if there are too few
        records of such calls."""
        labels = set(form_labels(traits, heads_per_kv).values())
        models = tuple(
            model for model in self._by_name.get((kernel, direction), ()) if labels.issuperset(model.form)
        )
        return CallModel(models) if models else None

    @property
    def kernels(self) -> list[str]:
        return sorted({model.kernel for model in self.models})

    def text(self) -> str:
        """The JSON: one line for each model."""
        models = ",\n  ".join(json.dumps(_rounded(asdict(model))) for model in self.models)
        strategies = ",\n  ".join(
            f"{json.dumps(name)}: {json.dumps(_rounded(asdict(interval)))}"
            for name, interval in self.strategies.items()
        )
        return (
            f'{{"device": {json.dumps(self.device)},\n "records": {json.dumps(self.records)},\n "ranks": '
            f"{self.ranks},\n"
            f' "rests": {json.dumps(self.rests)},\n "other_protocol": {json.dumps(self.other_protocol)},\n'
            f' "parts": {json.dumps(self.parts)},\n'
            f' "models": [\n  {models}\n ],\n'
            f' "strategies": {{\n  {strategies}\n }}}}\n'
        )


def load_fitted(path: Path = REFERENCE) -> FittedKernels:
    """Reads fitted models, by default those of the device with the most kernels.

    Raises:
        UserError: the file is missing or invalid.
    """
    try:
        return fitted_from(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' holds no fitted kernels",
            why=" ".join(str(error).split())[:120],
            todo="`python -m tools.fitted` makes them",
        ) from None


def fitted_from(content: Mapping[str, Any]) -> FittedKernels:
    """The models in parsed JSON. Raises ValueError, KeyError or TypeError if they are not there."""
    models = tuple(
        KernelModel(
            **{
                **entry,
                "form": tuple(entry["form"]),
                "shape": TileShape(**entry["shape"]),
                "by_mask": Interval(**entry["by_mask"]),
                "by_length": Interval(**entry["by_length"]),
            }
        )
        for entry in content["models"]
    )
    strategies = {name: Interval(**entry) for name, entry in content.get("strategies", {}).items()}
    return FittedKernels(
        content["device"],
        tuple(content["records"]),
        models,
        content["ranks"],
        strategies,
        content.get("rests", False),
        tuple(content.get("other_protocol", ())),
        {kernel: tuple(kinds) for kernel, kinds in content.get("parts", {}).items()},
    )


def fitted_on(names: Container[str]) -> FittedKernels | None:
    """The committed models of a device with one of these driver names; None if there are none."""
    return next(
        (kernels for kernels in map(load_fitted, sorted(FOLDER.glob("*.json"))) if kernels.device in names),
        None,
    )


def interval_of(
    fitted: FittedKernels, strategy: str, kernel: str, direction: str, of_kernel: Interval
) -> Interval:
    """The residuals of a strategy with this kernel in this direction. With too few records of this pair, the
    union of the intervals of the kernel alone and of the strategy with other kernels."""
    known = fitted.strategies
    interval = next(
        (known[key] for key in (f"{strategy}+{kernel} {direction}", f"{strategy}+{kernel}") if key in known),
        None,
    )
    return interval or widest([of_kernel, *([known[strategy]] if strategy in known else known.values())])


def _rounded(value: Any) -> Any:
    """Numbers rounded to five digits, so that the file is the same on all machines."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value
