"""Fitting of kernels to records: each timed call of attention becomes a sample of `longca.predict.fit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, UserError
from longca.lab.studies.masks import cell_mask, mask_name
from longca.lab.studies.record import Record, Samples
from longca.predict import (
    TileShape,
    TileStatistics,
    amounts,
    covers_all,
    form_labels,
    items_of,
    ran_earlier,
    tile_statistics,
    way_of,
)
from longca.predict.fit import FEWEST, SHAPES, Sample, fit_forms
from longca.predict.fitted import FittedKernels

if TYPE_CHECKING:
    from longca.lab.studies.cell import Cell
    from longca.masks import Mask

# longer block masks are skipped: they take gigabytes, and their tiles resemble those of shorter ones
MOST_BLOCK_TOKENS = 70_000
# of one call that differ in nothing else: others repeat what these tell, and each takes a mask to build
MOST_SEEDS = 3

UNUSED: dict[str, Any] = {
    "accuracy": None,
    "memory": None,
    "mask": None,
    "costs": {},
    "notes": (),
    "others": None,
}
"""of a record: no fit looks at it"""


class CallsToFit:
    """The records of several that a fit takes, as small as it wants them, and what there was beside them.

    These are records that `fits` accepts, without those of earlier kernels of `band`, and of one protocol for
    each kernel and direction: calls with a rest of the GPU after each are faster than calls without, so a fit
    to both would be of neither. Most kernels have the protocol of most records. A kernel without enough
    records of it has that of the other one, if it has enough of these. A call with many seeds is fitted on
    its lowest `MOST_SEEDS` seeds.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """
        Args:
            records: each is freed unless the fit may take it.
        """
        self.num_records = self.num_earlier = 0
        self.most_ranks = 0
        """of a present record that is ok"""
        self._counts: Counter[tuple[str, bool]] = Counter()
        # by call and protocol: seed → (number of the record, record)
        self._kept: dict[tuple[str, bool], dict[int, list[tuple[int, Record]]]] = {}
        for record in records:
            self._add(record)

    def _add(self, record: Record) -> None:
        self.num_records += 1
        if is_earlier(record):
            self.num_earlier += 1
            return
        if record.outcome.status == "ok":
            self.most_ranks = max(self.most_ranks, record.cell.world)
        if not fits(record):
            return
        rests = has_rests(record)
        self._counts[_pair(record), rests] += 1
        of_seeds = self._kept.setdefault((_but_seed(record.cell), rests), {})
        of_seeds.setdefault(record.cell.seed, []).append((self.num_records, _for_fit(record)))
        if len(of_seeds) > MOST_SEEDS:
            del of_seeds[max(of_seeds)]

    @property
    def rests(self) -> bool:
        """True if most of the records that can be fitted are of calls with rests."""
        return 2 * sum(count for (_, rests), count in self._counts.items() if rests) > self._counts.total()

    @property
    def other_protocol(self) -> set[str]:
        """Kernels and directions ("fa3 fwd") that are fitted on records of the other protocol."""
        counts, usual = self._counts, self.rests
        return {pair for pair, _ in counts if counts[pair, usual] < FEWEST <= counts[pair, not usual]}

    def records(self) -> list[Record]:
        """Those that are fitted, in the order in which they came."""
        other, usual = self.other_protocol, self.rests
        numbered = [
            each
            for (_, rests), of_seeds in self._kept.items()
            for same in of_seeds.values()
            for each in same
            if rests == (usual != (_pair(each[1]) in other))
        ]
        return [record for _, record in sorted(numbered, key=itemgetter(0))]


def _for_fit(record: Record) -> Record:
    """The record of a call without what no fit looks at: of its samples, the protocol and the median of the
    slowest rank's are left."""
    assert record.samples is not None
    samples = Samples(
        time_ms=((_median_ms(record.samples),),),
        warmup=record.samples.warmup,
        timer=record.samples.timer,
        duty=record.samples.duty,
    )
    return record.model_copy(update={**UNUSED, "samples": samples})


def fit_records(
    records: Iterable[Record], names: tuple[str, ...] = (), by_cell: bool = False
) -> FittedKernels:
    """Fits every kernel that has enough records on one device.

    Args:
        names: names of their files.
        by_cell: in the order of cells, whatever that of the records: sums depend on it by their last digits.

    Raises:
        UserError: there are no records to fit, or they are of several devices.
    """
    calls = CallsToFit(records)
    timed = calls.records()
    if by_cell:
        timed.sort(key=lambda record: record.cell_id)
    devices = sorted({device_of(record) for record in timed})
    if not timed:
        why = "a prediction needs timed calls of attention on one GPU"
        if calls.num_earlier:
            why += (
                f"; {calls.num_earlier} of these {calls.num_records} records are of `band` as it was before "
                f"its present kernels"
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
    return FittedKernels(
        devices[0],
        names,
        tuple(models),
        calls.most_ranks,
        rests=calls.rests,
        other_protocol=tuple(sorted(calls.other_protocol)),
    )


def _but_seed(cell: Cell) -> str:
    """All of a cell but its seed, as a text that only equal ones have."""
    return cell.model_dump_json(exclude={"seed"})


def has_rests(record: Record) -> bool:
    """True if the GPU rested after each call of a record."""
    return record.samples is not None and record.samples.duty is not None


def _pair(record: Record) -> str:
    """ "fa3 fwd"."""
    return f"{record.cell.kernel} {record.cell.direction}"


def is_earlier(record: Record) -> bool:
    """`ran_earlier` of a record."""
    return record.environment is not None and ran_earlier(
        record.cell.kernel, record.environment.source.git_sha or ""
    )


def fits(record: Record) -> bool:
    """True if a record is a timed call of attention on one GPU, with as many queries as keys, default inputs
    and a pause before each call."""
    cell = record.cell
    large = "density" in cell.mask_params and cell.seqlen > MOST_BLOCK_TOKENS
    return (
        cell.kind == "kernel"
        and record.outcome.status == "ok"
        and record.samples is not None
        and record.work is None
        and cell.input_values == "normal"
        and not cell.sustained
        and cell.new_tokens is None
        and not cell.kernel.startswith(AS_RELEASED)
        and cell.dtype == "bf16"
        and cell.head_dim == 128
        and not large
        and device_of(record) != ""
    )


def samples(records: Iterable[Record]) -> list[Sample]:
    """The samples of records, in their order. Each mask is built and analysed once, and one is in memory at a
    time."""
    content = list(records)
    of_masks: dict[str, list[int]] = {}
    for number, record in enumerate(content):
        of_masks.setdefault(mask_name(record.cell), []).append(number)
    by_length: dict[int, Sample] = {}
    for numbers in of_masks.values():
        mask = cell_mask(content[numbers[0]].cell)
        counted: dict[int, _Counted] = {}
        for number in numbers:
            cell = content[number].cell
            ratio = cell.num_q_heads // cell.num_kv_heads
            known = counted.get(ratio) or counted.setdefault(ratio, _Counted(mask, ratio))
            by_length[number] = _sample(content[number], known, ratio)
    return [by_length[number] for number in range(len(content))]


def _sample(record: Record, known: _Counted, ratio: int) -> Sample:
    cell = record.cell
    heads = (record.cell.num_q_heads, record.cell.num_kv_heads)
    assert record.samples is not None
    way = way_of(cell.kernel, cell.direction, known.mask, cell.num_kv_heads)
    items = items_of(cell.kernel, cell.direction, way)
    covered = covers_all(cell.kernel, cell.direction, known.mask.traits)
    return Sample(
        tuple(amounts(known.statistics(shape), shape, items, *heads, covered=covered) for shape in SHAPES),
        _median_ms(record.samples) / 1e3,
        _mask_group(cell),
        cell.seqlen,
        form_labels(known.mask.traits, ratio),
        way,
        ratio,
    )


def _median_ms(samples: Samples) -> float:
    """The median, the upper one of two, over calls of the slowest rank's time."""
    slowest = sorted(max(ranks) for ranks in zip(*samples.time_ms, strict=True))
    return slowest[len(slowest) // 2]


class _Counted:
    """A mask and its statistics for each tile."""

    def __init__(self, mask: Mask, heads_per_kv: int) -> None:
        self.mask = mask
        self._heads_per_kv = heads_per_kv
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
