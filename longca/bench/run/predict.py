"""Predictions for cells before they are run: support, operations and time. No torch, no tensors."""

from dataclasses import dataclass, replace
from typing import Any

from longca.bench.run.shards import estimate_seconds
from longca.core.cell import DTYPE_BYTES, Cell
from longca.core.plugin import Registry
from longca.core.record import Work
from longca.core.study import Measure
from longca.masks.build import build_mask, cell_mask, mask_name
from longca.masks.traits import Traits

PROXY_BLOCKS = 16  # a block mask of this many blocks a side has the traits of a large one, without its gigabytes
EFFICIENCY = 0.4  # share of the peak that a fair kernel reaches over all masks


@dataclass(frozen=True)
class Prediction:
    """The expected outcome and work of a cell on a device type."""

    cell: Cell
    unavailable: str | None
    unsupported: str | None
    density: float
    flops: float
    tensor_bytes: int  # inputs, outputs and their gradients
    work: Work | None = None  # for a control, which has neither pairs nor such tensors

    def seconds(self, peak_flops: float, measure: Measure) -> float:
        """Expected seconds on devices of this peak rate, checks included."""
        return estimate_seconds(self.cell, peak_flops * EFFICIENCY, measure, density=self.density, work=self.work)


class Predictor:
    """Predicts many cells of one device type; each mask is built and each plug-in loaded only once."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._masks: dict[str, tuple[Traits, float]] = {}
        self._plugins: dict[tuple[str, str], Any] = {}

    def predict(self, cell: Cell) -> Prediction:
        traits, density = self._mask(cell)
        kernel = self._plugin("kernel", cell.kernel)
        unavailable, unsupported = self._unavailable(cell), self._unsupported(cell, traits)
        work = kernel.work(cell)
        if work is not None:
            return Prediction(cell, unavailable, unsupported, 0.0, work.flops or 0, 0, work)
        flops = cell.flops(round(density * cell.seqlen**2), 1)
        row = cell.seqlen * cell.head_dim * DTYPE_BYTES[cell.dtype]
        tensors = row * (2 * cell.num_q_heads + 2 * cell.num_kv_heads)
        return Prediction(cell, unavailable, unsupported, density, flops, tensors if cell.direction == "fwd" else 2 * tensors)

    def refusal(self, cell: Cell) -> str | None:
        """The reason why this cell is unsupported; None if it is not. Packages need not be there: nothing asks for them."""
        return self._unsupported(cell, self._mask(cell)[0])

    def _unavailable(self, cell: Cell) -> str | None:
        strategy = self._plugin("strategy", cell.strategy).available(self.device_type) if cell.strategy else None
        return strategy or self._plugin("kernel", cell.kernel).available(self.device_type)

    def _unsupported(self, cell: Cell, traits: Traits) -> str | None:
        kernel = self._plugin("kernel", cell.kernel)
        if cell.strategy is None:
            return kernel.supports(cell.call_spec, traits, self.device_type)
        return self._plugin("strategy", cell.strategy).with_params(cell.strategy_params).refusal(cell, traits, kernel, self.device_type)

    def _mask(self, cell: Cell) -> tuple[Traits, float]:
        key = mask_name(cell)
        if key not in self._masks:
            block = int(cell.mask_params.get("block") or cell.mask_params.get("mean_block") or 0)
            small = PROXY_BLOCKS * block
            if self._plugin("mask", cell.mask).family == "dynamic" and 0 < small < cell.seqlen:
                proxy = build_mask(cell.mask, **{**cell.mask_key, "seqlen": small})
                area = round(proxy.density * proxy.num_groups * cell.seqlen**2)
                self._masks[key] = replace(proxy.traits, seqlen_q=cell.seqlen, seqlen_k=cell.seqlen, area=area), proxy.density
            else:
                mask = cell_mask(cell)
                self._masks[key] = mask.traits, mask.density
        return self._masks[key]

    def _plugin(self, kind: str, name: str) -> Any:
        if (kind, name) not in self._plugins:
            self._plugins[kind, name] = Registry(kind).load(name)
        return self._plugins[kind, name]
