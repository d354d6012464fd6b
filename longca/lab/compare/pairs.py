"""Pairing of two sets of results by request."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from longca.core import Hardware
from longca.lab.compare.side import Side, of_published, of_record
from longca.lab.published import PublishedRate
from longca.lab.ranking import RepeatPair, Resolutions, repeat_pairs
from longca.lab.store import View
from longca.lab.studies import Cell, Record


@dataclass(frozen=True)
class RecordPair:
    """Two results for one request; None on at most one side."""

    a: Side | None
    b: Side | None

    @property
    def cell(self) -> Cell:
        """The request; that of A if the two differ in fields that are not compared."""
        side = self.a if self.a is not None and self.a.cell is not None else self.b
        assert side is not None and side.cell is not None
        return side.cell

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key without values."""
        cell = self.cell
        return (
            cell.kind == "cp",
            cell.method,
            cell.world,
            cell.mask,
            cell.direction == "bwd",
            cell.seqlen,
            cell.num_queries,
            cell.cell_id,
            self.a.device if self.a else "",
            self.b.source if self.b else "",
        )


def pair_records(a: Iterable[Record], b: Iterable[Record], hardware: Hardware) -> list[RecordPair]:
    """Pairs of two sets of records, independent of their order.

    Records of one cell are paired by GPU model; if the sides share no model, the last records are paired. The
    remaining records are paired by kernel, strategy, ranks, mask with parameters, length, heads, direction
    and seed: these pairs differ in dtype, head dim or corpus, as their verdicts say. If a cell was measured
    several times on one GPU model, the last record counts.
    """
    left = _last(a)
    right = _last(b)
    records: list[tuple[Record | None, Record | None]] = []
    for cell_id in left.keys() & right.keys():
        here = left.pop(cell_id)
        there = right.pop(cell_id)
        shared = here.keys() & there.keys()
        records += [(here[device], there[device]) for device in shared] or [
            (latest_record(here.values()), latest_record(there.values()))
        ]
    asked_a = _by_request(left)
    asked_b = _by_request(right)
    for request in asked_a.keys() | asked_b.keys():
        records += zip_longest(asked_a.get(request, []), asked_b.get(request, []))
    pairs = [
        RecordPair(first and of_record(first, hardware), other and of_record(other, hardware))
        for first, other in records
    ]
    return sorted(pairs, key=lambda pair: pair.order)


def resolutions_of(sides: Iterable[Iterable[Record]], hardware: Hardware) -> Resolutions:
    """The resolutions of the package, with the repeats in each side: several records of one cell. Records of
    two sides are no repeats, since they are what is compared."""
    pairs: list[RepeatPair] = []
    for side in sides:
        by_cell: dict[str, list[Record]] = defaultdict(list)
        for record in side:
            by_cell[record.cell_id].append(record)
        several = [record for records in by_cell.values() if len(records) > 1 for record in records]
        results = [of_record(record, hardware) for record in several if record.outcome.status == "ok"]
        pairs += repeat_pairs(
            result.measurement for result in results if result.measurement and not result.is_control
        )
    return Resolutions.known().widened(pairs)


class PublishedPairs(NamedTuple):
    """Records paired with published rates, and unpaired ones."""

    pairs: list[RecordPair]
    num_cells_alone: int
    """cells of attention without a published rate"""
    num_rates_alone: int
    """published rates without a cell"""


def pair_published(
    records: Iterable[Record], rates: Iterable[PublishedRate], hardware: Hardware
) -> PublishedPairs:
    """Pairs of each record, as A, with all published rates for its request, as B."""
    index: dict[Hashable, list[PublishedRate]] = defaultdict(list)
    alone = set()
    for rate in rates:
        index[rate.strategy, rate.kernel, rate.mask, rate.direction, rate.seqlen].append(rate)
        alone.add(id(rate))
    pairs: list[RecordPair] = []
    num_cells_alone = 0
    for by_device in _last(records).values():
        cell = next(iter(by_device.values())).cell
        key = cell.strategy, cell.kernel, cell.mask, cell.direction, cell.seqlen
        found = [rate for rate in index.get(key, []) if rate.asks(cell)]
        pairs += [
            RecordPair(of_record(record, hardware), of_published(rate, hardware))
            for rate in found
            for record in by_device.values()
        ]
        alone -= {id(rate) for rate in found}
        num_cells_alone += not found and any(record.work is None for record in by_device.values())
    return PublishedPairs(sorted(pairs, key=lambda pair: pair.order), num_cells_alone, len(alone))


def _last(records: Iterable[Record]) -> dict[str, dict[str, Record]]:
    """Cell id → GPU model → the last record of the cell on that model."""
    latest: dict[str, dict[str, Record]] = {}
    unknown = Hardware()
    for record in records:
        by_device = latest.setdefault(record.cell_id, {})
        device = View(record, unknown).device
        by_device[device] = latest_record([record, by_device[device]]) if device in by_device else record
    return latest


def latest_record(records: Iterable[Record]) -> Record:
    """The last of several records of one cell, independent of their order."""
    content = list(records)
    if len(content) == 1:
        return content[0]
    return max(
        content,
        key=lambda record: (
            record.started_at,
            record.run_id,
            record.method_version,
            record.model_dump_json(),
        ),
    )


def _by_request(left: dict[str, dict[str, Record]]) -> dict[Hashable, list[Record]]:
    """The request without dtype, head dim and corpus → the last record of each of its cells."""
    by_request: dict[Hashable, list[Record]] = defaultdict(list)
    for by_device in left.values():
        record = latest_record(by_device.values())
        cell = record.cell
        by_request[
            cell.method,
            cell.world,
            cell.mask,
            json.dumps(cell.mask_params, sort_keys=True),
            cell.seqlen,
            cell.new_tokens,
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.direction,
            cell.seed,
        ].append(record)
    for records in by_request.values():
        records.sort(
            key=lambda record: (
                record.cell.dtype,
                record.cell.head_dim,
                record.cell.corpus or "",
                record.cell_id,
            )
        )
    return by_request
