"""The measured cells of context parallelism, each with the work partition that it ran, remade from its notes.

Older records have plans that today's rules would not choose; a prediction is judged on the plan that ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from longca.core import Hardware, Registry
from longca.cp import HeadStrategy
from longca.cp.forecast import PROFILES, CallForecast, DeviceModel, WorkForecast, forecast
from longca.cp.paper_style_forecast import GATHER, RING, forecast_paper_style
from longca.cp.partition import Mesh, make_sharding
from longca.cp.schedule import (
    Gather,
    LinkSpeeds,
    Ring,
    Schedule,
    WorkPartition,
    partition_heads,
    partition_on,
)
from longca.lab.store import View
from longca.lab.studies import Record, cell_mask, mask_name, strategy_of
from longca.lab.studies.fitting import is_earlier
from longca.masks import Mask
from longca.predict.fitted import FittedKernels

OWN = ("ring_p2p", "ring_allgather", "usp", "loongtrain", "ulysses")
PAPER = (RING, GATHER)


@dataclass(frozen=True)
class MeasuredCell:
    """One record of a strategy that can be forecast."""

    record: Record
    mask: Mask
    work: WorkPartition | None
    """None for strategies in the style of the study"""

    @cached_property
    def _view(self) -> View:
        return View(self.record, Hardware())

    @property
    def seconds(self) -> float:
        """The median over iterations of the slowest rank's time."""
        assert self._view.median_ms is not None, "`measured_cell` takes none without samples"
        return self._view.median_ms / 1e3

    @property
    def noise(self) -> float:
        """The interquartile range of these times over their median."""
        assert self._view.noise is not None, "`measured_cell` takes none without samples"
        return self._view.noise

    @property
    def is_noisy(self) -> bool:
        return self._view.is_noisy

    @property
    def profile(self) -> str:
        """The profile of its messages: those in the style of the study wait for collectives, which records do
        not name."""
        return PROFILES["nccl" if self.work is None else "symmetric"]

    def device(self, fitted: FittedKernels, memory_bytes_per_s: float) -> DeviceModel | None:
        """The fitted kernel of the cell; None without one."""
        cell = self.record.cell
        model = fitted.find(
            cell.kernel, cell.direction, self.mask.traits, cell.num_q_heads // cell.num_kv_heads
        )
        return (
            None
            if model is None
            else DeviceModel(model, memory_bytes_per_s, Registry("kernel").load(cell.kernel).merges)
        )

    def forecast_s(self, device: DeviceModel, links: LinkSpeeds) -> float:
        """Seconds of the slowest rank, predicted."""
        if self.work is None:
            return self.forecast(device, links).seconds
        return float(
            WorkForecast(self.work, self.record.cell.call_spec, device, packs=links.packs)
            .times(links)
            .total_s.max()
        )

    def forecast(self, device: DeviceModel, links: LinkSpeeds) -> CallForecast:
        """The whole forecast."""
        cell = self.record.cell
        if self.work is None:
            assert cell.strategy is not None
            return forecast_paper_style(cell.strategy, self.mask, cell.call_spec, cell.world, device, links)
        return forecast(self.work, cell.call_spec, device, links)


def measured_cells(records: Iterable[Record]) -> list[MeasuredCell]:
    """The cells that ran, of own strategies and of those in the style of the study."""
    masks: dict[str, Mask] = {}
    return [measured for record in records if (measured := measured_cell(record, masks)) is not None]


def measured_cell(record: Record, masks: dict[str, Mask]) -> MeasuredCell | None:
    """The cell of a record; None for what has no time or no forecast, and for an earlier `band`, whose
    kernels no model is fitted to.

    Args:
        masks: that have been built, by name; its own is added.
    """
    cell = record.cell
    if (
        cell.kind != "cp"
        or record.outcome.status != "ok"
        or cell.strategy not in (*OWN, *PAPER)
        or record.samples is None
    ):
        return None
    if is_earlier(record):
        return None
    name = mask_name(cell)
    mask = masks[name] if name in masks else masks.setdefault(name, cell_mask(cell))
    return MeasuredCell(record, mask, None if cell.strategy in PAPER else partition_of(record, mask))


def partition_of(record: Record, mask: Mask) -> WorkPartition:
    """The work partition that a record's notes tell of."""
    cell = record.cell
    notes = "; ".join(record.notes)
    chunks = re.search(r"in chunks of ([\d, ]+)", notes)
    weights = tuple(map(int, chunks.group(1).split(", "))) if chunks else (1,)
    sharding = re.search(r"tokens: ([\w-]+)", notes)
    if sharding is None:
        return partition_heads(mask, cell.call_spec, cell.world, weights)
    strategy = strategy_of(cell)
    assert isinstance(strategy, HeadStrategy)
    heads = re.search(r"heads among (\d+)", notes)
    mesh = Mesh(cell.world // int(heads.group(1)), int(heads.group(1))) if heads else Mesh(cell.world)
    plan = schedule_of(notes).plan(mask, make_sharding(sharding.group(1), mask, mesh.ring))
    return partition_on(mesh, plan, cell.call_spec, weights)


def schedule_of(notes: str) -> Schedule:
    """The schedule that notes begin with: the text of `Ring` or `Gather`."""
    if window := re.search(r"a double ring by windows of (\d+)", notes):
        return Ring(window=int(window.group(1)))
    if stages := re.search(r"a gather in (\d+) step", notes):
        return Gather(int(stages.group(1)))
    if "a gather first" in notes:
        return Gather(0)
    return Ring(two_way="a ring both ways" in notes)
