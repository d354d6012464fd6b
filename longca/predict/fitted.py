"""Fitted models of kernels, stored as JSON.

`models/` has a file for each device with committed records; `python -m tools.fitted` makes them. Other
records can be fitted in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import UserError
from longca.predict.kernel import (
    FITTED_HEAD_DIM,
    Interval,
    KernelModel,
    amounts,
    covers_all,
    form_labels,
    items_of,
    way_of,
    widest,
)
from longca.predict.tile_statistics import TileShape, tile_statistics

if TYPE_CHECKING:
    import numpy as np

    from longca.masks import Mask, Traits
    from longca.predict.tile_statistics import TileShape, TileStatistics


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
