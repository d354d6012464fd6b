"""Predictions for cells before they are run: support, operations, memory and time. No torch, no tensors."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from longca.core import DTYPE_BYTES, CallSpec, Registry, Work
from longca.core.plugin import is_of_package
from longca.kernels import CallSizes
from longca.lab.bench.plan.shards import estimate_playoff_seconds, estimate_seconds
from longca.lab.studies import Cell, Measure, Study, cell_mask, mask_name
from longca.lab.studies.playoff.case import case_id, may_play
from longca.lab.studies.playoff.rules import PlayoffRules
from longca.masks import LazyMask, Mask, MaskBuilder, Traits

# a block mask of this many blocks a side has the traits of a large one, without its gigabytes
PROXY_BLOCKS = 16
# of the number of runs in a row, whose variance is about half of its mean: the largest of 10⁵ rows
DEVIATIONS = 3.0
# ranks whose plan is made to find their memory: thousands of plans for more take minutes, and no record shows
# what so many need
MOST_PLANNED = 4
EFFICIENCY = 0.4  # share of the peak that a fair kernel reaches over all masks


@dataclass(frozen=True)
class Prediction:
    """The expected outcome and work of a cell on a device type."""

    cell: Cell
    unavailable: str | None
    unsupported: str | None
    density: float
    flops: float
    tensor_bytes: int  # inputs, outputs and their gradients, of all ranks
    memory_bytes: int  # forecast of the most that a rank needs; 0 for a cell that does not run
    work: Work | None = None  # for a control, which has neither pairs nor such tensors
    on_gpu: bool = True

    def seconds(self, peak_flops: float, measure: Measure) -> float:
        """Expected seconds on devices of this peak rate, checks included."""
        return estimate_seconds(
            self.cell,
            peak_flops * EFFICIENCY,
            measure,
            density=self.density,
            work=self.work,
            on_gpu=self.on_gpu,
        )


def playoff_hours(predictions: Iterable[Prediction], study: Study, peak_flops: float) -> tuple[int, float]:
    """(number of play-offs, hours that they take) where these cells run and no others.

    A case that plays without doubt with a kernel in an external file has none, unless the rules allow it.
    """
    cases: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        if prediction.work is None and may_play(prediction.cell):
            cases.setdefault(case_id(prediction.cell, ""), []).append(prediction)
    seconds = (
        [
            estimate_playoff_seconds(
                of_case[0].cell,
                len(of_case),
                study.playoff,
                peak_flops * EFFICIENCY,
                study.measure_of(of_case[0].cell),
                of_case[0].density,
            )
            for of_case in cases.values()
            if not _is_left_out(of_case, study.playoff)
        ]
        if study.playoff is not None
        else []
    )
    return sum(cost > 0 for cost in seconds), sum(seconds) / 3600


def _is_left_out(of_case: Sequence[Prediction], rules: PlayoffRules) -> bool:
    """True if all methods of a case play, one of them in an external file, and the rules do not allow it."""
    return (
        not rules.own_files
        and len(of_case) <= rules.first
        and not all(is_of_package("kernel", prediction.cell.kernel) for prediction in of_case)
    )


class Predictor:
    """Predicts many cells of one device type; each mask is built and each plug-in loaded only once."""

    def __init__(self, device_type: str, *, is_here: bool = True) -> None:
        """
        Args:
            device_type: "cpu" or "cuda".
            is_here: cells would run on this machine. Otherwise nothing is said about what is installed.
        """
        self.device_type = device_type
        self.is_here = is_here
        self._builder = MaskBuilder()
        self._masks: dict[str, tuple[Traits, float]] = {}
        self._drawn: dict[str, Mask] = {}  # of the cells at hand
        self._plugins: dict[tuple[str, str], Any] = {}
        self._plans: dict[Any, Any] = {}  # of all strategies

    def predict_all(self, cells: Sequence[Cell]) -> dict[str, Prediction]:
        """cell_id → prediction."""
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in (
            cells
        ):  # those of one mask and its other seeds stay together: drawn once, divided among ranks once
            groups.setdefault(
                (-cell.world, cell.mask, str(cell.mask_params), cell.corpus or "", cell.seqlen), []
            ).append(cell)
        predictions: dict[str, Prediction] = {}
        for key in sorted(groups):
            predictions |= {cell.cell_id: self.predict(cell) for cell in groups[key]}
            self._drawn.clear()
        return predictions

    def predict(self, cell: Cell) -> Prediction:
        traits, density = self._mask(cell)
        kernel = self._plugin("kernel", cell.kernel)
        unavailable = self._unavailable(cell)
        # to divide a mask among many ranks takes ms: not for a method that is not here
        unsupported = None if unavailable and cell.strategy else self._unsupported(cell, traits)
        work = kernel.work(cell.call_spec, cell.seqlen)
        if work is not None:
            return Prediction(
                cell,
                unavailable,
                unsupported,
                0.0,
                work.flops or 0,
                0,
                work.traffic_bytes or 0,
                work,
                self.device_type == "cuda",
            )
        # a method that is not here has not been asked whether it can
        is_out = unsupported is not None or (unavailable is not None and cell.strategy is not None)
        flops = cell.flops(round(density * cell.num_pairs), 1)
        row = cell.head_dim * DTYPE_BYTES[cell.dtype]
        tensors = 2 * row * (cell.num_queries * cell.num_q_heads + cell.seqlen * cell.num_kv_heads)
        if cell.direction == "bwd":
            tensors *= 2
        return Prediction(
            cell,
            unavailable,
            unsupported,
            density,
            flops,
            tensors,
            0 if is_out else self._memory_bytes(cell, tensors, traits),
            on_gpu=self.device_type == "cuda",
        )

    def refusal(self, cell: Cell) -> str | None:
        """The reason why this cell is unsupported; None if it is not. Packages need not be there: nothing
        asks for them."""
        return self._unsupported(cell, self._mask(cell)[0])

    def _unavailable(self, cell: Cell) -> str | None:
        if not self.is_here:
            return None
        strategy = self._available("strategy", cell.strategy) if cell.strategy else None
        return strategy or self._available("kernel", cell.kernel)

    @cache  # noqa: B019 - a predictor lives as long as a command
    def _available(self, kind: str, name: str) -> str | None:
        return self._plugin(kind, name).available(self.device_type)

    def _unsupported(self, cell: Cell, traits: Traits) -> str | None:
        kernel = self._plugin("kernel", cell.kernel)
        if cell.strategy is None:
            return kernel.supports(cell.call_spec, traits, self.device_type)
        mask = self._lazy(cell, traits)
        return self._strategy(cell).refusal(mask, cell.call_spec, cell.world, kernel, self.device_type)

    def _memory_bytes(self, cell: Cell, tensor_bytes: int, traits: Traits) -> int:
        """Bytes of the rank that needs most while the cell is measured."""
        kernel = self._plugin("kernel", cell.kernel)
        call = cell.call_spec
        mask = self._lazy(cell, traits)
        if cell.strategy is None:
            return tensor_bytes + kernel.buffer_bytes(call, mask)
        buffers = (
            self._strategy(cell).buffer_bytes(mask, call, cell.world, kernel, self.device_type)
            if cell.world <= MOST_PLANNED
            else _usual_buffer_bytes(call, traits, cell.world)
        )
        # the measurement holds dO of the checked call, and in both directions that of all others
        checked = CallSizes(call, traits).queries * (1 if cell.direction == "bwd" else 2)
        return round((tensor_bytes + checked) / cell.world) + buffers

    def _lazy(self, cell: Cell, traits: Traits) -> Mask | LazyMask:
        name = mask_name(cell)

        def draw() -> Mask:
            self._drawn[name] = mask = cell_mask(cell)
            return mask

        return self._drawn.get(name) or LazyMask(traits, draw)

    def _strategy(self, cell: Cell) -> Any:
        """The strategy with the cell's parameters. It keeps the plans of the last masks, so there is one for
        all cells."""
        key = "strategy", f"{cell.strategy} {cell.strategy_params}"
        if key not in self._plugins:
            assert cell.strategy is not None
            self._plugins[key] = self._plugin("strategy", cell.strategy).with_params(cell.strategy_params)
            self._plugins[key].share_plans(self._plans)
        return self._plugins[key]

    def _mask(self, cell: Cell) -> tuple[Traits, float]:
        """(traits, density) of the cell's mask."""
        name = mask_name(cell)
        if name not in self._masks:
            block = int(cell.mask_params.get("block") or cell.mask_params.get("mean_block") or 0)
            small = PROXY_BLOCKS * block
            if self._plugin("mask", cell.mask).family == "dynamic" and 0 < small < cell.seqlen:
                arguments = {**cell.mask_key, "seqlen": small, "new_tokens": None}
                proxy = self._builder.build(cell.mask, **arguments)
                self._masks[name] = _enlarged(proxy.traits, proxy.density, cell), proxy.density
            else:
                self._drawn[name] = mask = self._builder.build(cell.mask, **cell.mask_key)
                self._masks[name] = mask.traits, mask.density
        return self._masks[name]

    def _plugin(self, kind: str, name: str) -> Any:
        if (kind, name) not in self._plugins:
            self._plugins[kind, name] = Registry(kind).load(name)
        return self._plugins[kind, name]


def _enlarged(small: Traits, density: float, cell: Cell) -> Traits:
    """The traits of a cell's block mask, from those of a small one of its kind.

    A row of N independent blocks of density p has N·p·(1 − p) runs of visible blocks. The largest number of
    all rows is some standard deviations above.
    """
    rows = cell.num_queries / small.seqlen_q
    keys = cell.seqlen / small.seqlen_k
    runs = PROXY_BLOCKS * density * (1 - density)
    of_row, of_col = (
        math.ceil(runs * longer + DEVIATIONS * math.sqrt(runs * longer / 2)) for longer in (keys, rows)
    )
    return replace(
        small,
        seqlen_q=cell.num_queries,
        seqlen_k=cell.seqlen,
        area=round(density * small.num_groups * cell.num_pairs),
        num_bands=round(small.num_groups * PROXY_BLOCKS * rows * runs * keys),
        max_row_intervals=of_row,
        max_col_intervals=of_col,
    )


def _usual_buffer_bytes(call: CallSpec, traits: Traits, world: int) -> int:
    """Bytes beside its shards that a rank of a ring holds, by shapes alone: keys of two other ranks and the
    sum of results; backward, gradients of all three in float32 as well."""
    share = -(-traits.seqlen_q // world)
    sizes = CallSizes(call, replace(traits, seqlen_q=share, seqlen_k=share))
    sums = sizes.query_sums + (2 * 3 * sizes.key_sums if call.direction == "bwd" else 0)
    return 2 * 2 * sizes.keys + sums
