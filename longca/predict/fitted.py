"""Fitted models of kernels, computed from records and stored as JSON.

`models/` has a file for each device with committed records; `python -m tools.fitted` makes them. Other
records can be fitted in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core.errors import UserError
from longca.lab.studies.cell import AS_RELEASED, Cell
from longca.masks.build import cell_mask, mask_name
from longca.predict.call import CallModel
from longca.predict.fit import FEWEST, SHAPES, Sample, fit_forms
from longca.predict.kernel import Interval, KernelModel, amounts, form_labels, widest
from longca.predict.tile_statistics import TileShape, TileStatistics, tile_statistics
from longca.predict.ways import covers_all, items_of, ran_earlier, way_of

if TYPE_CHECKING:
    from longca.lab.studies.record import Record
    from longca.masks.mask import Mask
    from longca.masks.traits import Traits

FOLDER = Path(__file__).parent / "models"
REFERENCE = FOLDER / "h200.json"  # has the most kernels: predictions for other GPUs are scaled from it
# longer block masks are skipped: they take gigabytes, and their tiles resemble those of shorter ones
MOST_BLOCK_TOKENS = 70_000


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
            f' "models": [\n  {models}\n ],\n'
            f' "strategies": {{\n  {strategies}\n }}}}\n'
        )


def load_fitted(path: Path = REFERENCE) -> FittedKernels:
    """Reads fitted models, by default those of the device with the most kernels.

    Raises:
        UserError: the file is missing or invalid.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
            content["device"], tuple(content["records"]), models, content["ranks"], strategies
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' holds no fitted kernels",
            why=" ".join(str(error).split())[:120],
            todo="`python -m tools.fitted` makes them",
        ) from None


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


def fit_records(records: Iterable[Record], names: tuple[str, ...] = ()) -> FittedKernels:
    """Fits every kernel that has enough records on one device.

    Args:
        names: names of their files.

    Raises:
        UserError: there are no records to fit, or they are of several devices.
    """
    records = list(records)
    timed = to_fit(records)
    devices = sorted({device_of(record) for record in timed})
    present = [record for record in records if not is_earlier(record)]
    if not timed:
        why = "a prediction needs timed calls of attention on one GPU"
        if earlier := len(records) - len(present):
            why += (
                f"; {earlier} of these {len(records)} records are of `band` as it was before its present "
                f"kernels"
            )
        raise UserError("There are no records to fit", why=why, todo="Measure first with `longca run`")
    if len(devices) > 1:
        raise UserError(
            f"These records are of {len(devices)} devices: {', '.join(devices)}", todo="Give those of one"
        )
    groups: dict[tuple[str, str], list[Sample]] = {}
    for record, sample in zip(timed, samples(timed), strict=True):
        groups.setdefault((record.cell.kernel, record.cell.direction), []).append(sample)
    models = (
        model
        for key in sorted(groups)
        if len(groups[key]) >= FEWEST
        for model in fit_forms(*key, groups[key])
    )
    ranks = max(record.cell.world for record in present if record.outcome.status == "ok")
    return FittedKernels(devices[0], names, tuple(models), ranks)


def to_fit(records: Iterable[Record]) -> list[Record]:
    """The records that `fits` accepts, without those of earlier kernels of `band`."""
    return [record for record in records if fits(record) and not is_earlier(record)]


def is_earlier(record: Record) -> bool:
    """`ran_earlier` of a record."""
    return record.environment is not None and ran_earlier(
        record.cell.kernel, record.environment.source.git_sha or ""
    )


def fits(record: Record) -> bool:
    """True if a record is a timed call of attention on one GPU, with default inputs and a pause before each
    call."""
    cell = record.cell
    large = "density" in cell.mask_params and cell.seqlen > MOST_BLOCK_TOKENS
    return (
        cell.kind == "kernel"
        and record.outcome.status == "ok"
        and record.samples is not None
        and record.work is None
        and cell.input_values == "normal"
        and not cell.sustained
        and not cell.kernel.startswith(AS_RELEASED)
        and cell.dtype == "bf16"
        and cell.head_dim == 128
        and not large
        and device_of(record) != ""
    )


def samples(records: Iterable[Record]) -> list[Sample]:
    """The samples of records, in their order. Each mask is built and analysed once."""
    counted: dict[tuple[str, int], _Counted] = {}
    kept = []
    for record in records:
        cell = record.cell
        ratio = cell.num_q_heads // cell.num_kv_heads
        key = mask_name(cell), ratio
        if key not in counted:
            counted[key] = _Counted(cell_mask(cell), ratio)
        known, heads = counted[key], (cell.num_q_heads, cell.num_kv_heads)
        assert record.samples is not None
        seconds = (
            sorted(max(ranks) for ranks in zip(*record.samples.time_ms, strict=True))[
                len(record.samples.time_ms[0]) // 2
            ]
            / 1e3
        )
        way = way_of(cell.kernel, cell.direction, known.mask, cell.num_kv_heads)
        items, covered = (
            items_of(cell.kernel, cell.direction, way),
            covers_all(cell.kernel, cell.direction, known.mask.traits),
        )
        kept.append(
            Sample(
                tuple(
                    amounts(known.statistics(shape), shape, items, *heads, covered=covered)
                    for shape in SHAPES
                ),
                seconds,
                _mask_group(cell),
                cell.seqlen,
                form_labels(known.mask.traits, ratio),
                way,
                ratio,
            )
        )
    return kept


class _Counted:
    """A mask and its statistics for each tile."""

    def __init__(self, mask: Mask, heads_per_kv: int) -> None:
        self.mask, self._heads_per_kv = mask, heads_per_kv
        self._known: dict[tuple[int, int, bool], TileStatistics] = {}

    def statistics(self, shape: TileShape) -> TileStatistics:
        key = shape.tokens(self._heads_per_kv), shape.keys, shape.per_block and self.mask.grid is not None
        if key not in self._known:
            self._known[key] = tile_statistics(self.mask, shape, self._heads_per_kv)
        return self._known[key]


def _mask_group(cell: Cell) -> str:
    """The group in which a record is held out: random block masks of different densities are different
    masks."""
    return f"{cell.mask} {cell.mask_params['density']}" if "density" in cell.mask_params else cell.mask


def device_of(record: Record) -> str:
    """The driver's name of the GPU of a record; "" for none."""
    return str(record.environment.nodes[0].gpu.get("name", "")) if record.environment else ""


def _rounded(value: Any) -> Any:
    """Numbers rounded to five digits, so that the file is the same on all machines."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value
