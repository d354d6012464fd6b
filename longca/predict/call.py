"""The predicted time of a kernel call on a mask: the choice of the kernel's model, and the features of the
call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longca.predict.kernel import FITTED_HEAD_DIM, Interval, KernelModel, amounts, widest
from longca.predict.tile_statistics import tile_statistics
from longca.predict.ways import covers_all, items_of, way_of

if TYPE_CHECKING:
    import numpy as np

    from longca.masks import Mask
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
