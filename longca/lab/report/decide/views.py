"""Views: the heat map of each setting and direction, for the page's first picture, its switches and its
ranking."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from longca.core import AS_RELEASED, format_length
from longca.lab.ranking import RankedMethod, Standing, Tally, tallies
from longca.lab.ranking.sentences import (
    NOT_COMPARED,
    WITH_RESTS,
    finding_text,
    left_out_text,
    margin,
    not_compared_text,
    share_text,
    verdict,
    worst_text,
)
from longca.lab.report import matrix
from longca.lab.report.decide.cases import CaseKey, Cases, cases
from longca.lab.report.series import DIRECTIONS, labelled, mask_order, rate_unit
from longca.lab.store.table import is_ranked
from longca.lab.store.text import NONE, number, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

ENOUGH = 0.75  # of the most points: the default is the largest setting with so many
ALONE = "alone"  # in place of a number of ranks: kernels on one device
ASIDE = (
    "Rows “as released” are never ranked: the page of the whole study has them beside this project's rows. "
)
PALEST = 0.4  # this share and less has the palest colour
SHORT = {NOT_COMPARED.format(WITH_RESTS[False]): "no rests", NOT_COMPARED.format(WITH_RESTS[True]): "rests"}
"""what squares say of methods that are not compared, by their status"""
SHORT_STATUS = matrix.SHORT | SHORT
NOT_ASKED = "not asked: no record of this method under this mask, at this setting"


@dataclass(frozen=True)
class Placed:
    """One method in one case. Rates are in TFLOP/s of one device, times in ms."""

    tflops: float
    low: float
    high: float
    """the median's 95 % interval"""
    ms: float
    share: float
    place: int
    tied: bool
    """True if it ties with others in front"""
    margin: str
    num_samples: int
    num_cells: int
    cell_id: str
    is_alone: bool
    """True for the only method measured on this mask; its share and rank carry no information"""

    @property
    def text(self) -> str:
        """Percent of the best, rounded down: 100 is the best alone, or exactly as fast."""
        return "only" if self.is_alone else whole_percent(self.share)

    @property
    def rank(self) -> str:
        return NONE if self.is_alone else str(self.place)

    @property
    def percent(self) -> str:
        """Percent of the best with its digits; "" without a comparison."""
        return "" if self.is_alone else number(100 * self.share)

    @property
    def frame(self) -> str:
        """Classes of its square in the heat map."""
        frame_class = " lone" if self.is_alone else " best" if self.place == 1 else ""
        return f"case{frame_class}{' tied' if self.tied else ''}"

    @property
    def strength(self) -> int:
        """Percent of the strongest colour, most sensitive to differences between the best methods."""
        return round(100 * (max(self.share - PALEST, 0) / (1 - PALEST)) ** 1.5)


def whole_percent(share: float) -> str:
    """Rounded down, so that 100 means the best."""
    return str(int(100 * share + 1e-9))


@dataclass(frozen=True)
class ColumnFoot:
    """The summary below a method's column in a heat map."""

    method: str
    share: float | None
    """its worst share; None without a comparison"""
    note: str
    """the text below it: omissions, and the number of its masks"""
    ran_all: bool
    tip: str

    @property
    def text(self) -> str:
        return NONE if self.share is None else whole_percent(self.share)


@dataclass(frozen=True)
class LostSquare:
    """A square of the heat map without a number."""

    short: str
    why: str


@dataclass(frozen=True)
class HeatMap:
    """One setting and direction."""

    seqlen: int
    setting: str
    ranks: str
    direction: str
    masks: list[str]
    columns: list[ColumnFoot]
    cases: dict[str, Standing]
    """mask → the standing of the methods there"""
    entries: dict[tuple[str, str], Placed]
    """(mask, method) → its result"""
    missing: dict[tuple[str, str], tuple[str, str]]
    """(mask, method) → (status, cell id) of what has no number; of what has one by the other protocol, that
    in place of the status"""
    num_counted: int
    """masks that count: all but repeats (`longca.lab.report.series.is_repeat`)"""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """(mask, method) → the recorded reason of what has no number"""

    @property
    def has_repeats(self) -> bool:
        return self.num_counted < len(self.masks)

    @property
    def num_compared(self) -> int:
        """The results on masks with several methods."""
        return sum(len(case.entries) for case in self.cases.values() if case.is_compared)

    @property
    def opening(self) -> str:
        """The initial mask: the first with several methods, or else the first."""
        return next((mask for mask in self.masks if self.cases[mask].is_compared), self.masks[0])

    def ranking(self, mask: str) -> list[tuple[str, Placed]]:
        """The methods of one mask, best first."""
        return [(entry.method, self.entries[mask, entry.method]) for entry in self.cases[mask].entries]

    def lost(self, mask: str, method: str) -> LostSquare:
        """The text in place of a number that is not there."""
        if (mask, method) not in self.missing:
            return LostSquare("", NOT_ASKED)
        status = self.missing[mask, method][0]
        reason = self.reasons.get((mask, method), "")
        return LostSquare(SHORT_STATUS.get(status, status), f"{status}: {reason}" if reason else status)

    def not_ranked(self, mask: str) -> str:
        """The methods without a number under this mask; "" if all have one."""
        names = [
            f"{method} ({status})" for (name, method), (status, _) in self.missing.items() if name == mask
        ]
        return f"Not ranked here: {', '.join(names)}." if names else ""

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """A description of the outcome of each mask."""
        unit = rate_unit(max(entry.tflops for entry in self.entries.values()))
        return {
            mask: verdict(
                self.cases[mask], lambda rate, mask=mask: f"{unit.text(rate)}, {number(self._ms(mask))} ms"
            )
            for mask in self.masks
        }

    def _ms(self, mask: str) -> float:
        return self.entries[mask, self.cases[mask].first.method].ms


@dataclass(frozen=True)
class Decision:
    """All views, and the initial one."""

    views: list[HeatMap]
    default: HeatMap
    finding: str
    masks: list[str]
    names: dict[str, str]
    """mask's label → its pattern"""


def decision(table: pd.DataFrame) -> Decision | None:
    """None if nothing was timed."""
    named = labelled(table)
    aside = bool(named.kernel.astype(str).str.startswith(AS_RELEASED).any())
    named = named[is_ranked(named)]
    by_kind = {
        kind: of_kind
        for kind in ("kernel", "cp")
        if (named.kind == kind).any() and (of_kind := cases(table, kind)).standings
    }
    if not by_kind:
        return None
    order = mask_order(named)
    views = []
    for kind, of_kind in by_kind.items():
        missing, reasons = _missing(named[named.kind == kind])
        keys = {(case.world, case.seqlen, case.setting, case.direction) for case in of_kind.standings}
        for key in sorted(keys):
            world, seqlen, setting, direction = key
            chosen = of_kind.where(world=world, seqlen=seqlen, setting=setting, direction=direction)
            views.append(_view(kind, key, chosen, missing.get(key, {}), order, reasons))
    default = _default(views)
    kind = "kernel" if default.ranks == ALONE else "cp"
    chosen = by_kind[kind].where(seqlen=default.seqlen, setting=default.setting)
    chosen = chosen if kind == "kernel" else chosen.where(world=int(default.ranks))
    finding = f"{ASIDE if aside else ''}{_sentence(chosen, kind)}"
    return Decision(
        views,
        default,
        finding,
        [mask for mask in order if any(mask in view.masks for view in views)],
        dict(zip(named.mask_label, named["mask"], strict=True)),
    )


def _view(
    kind: str,
    key: tuple[Any, ...],
    kept: Cases,
    missing: dict[tuple[str, str], tuple[str, str]],
    order: list[str],
    reasons: dict[str, str],
) -> HeatMap:
    world, seqlen, setting, direction = key
    of_masks = {name.mask_label: case for name, case in kept.standings.items()}
    entries = {
        (mask, entry.method): _placed(case, entry)
        for mask, case in of_masks.items()
        for entry in case.entries
    }
    lost = {name: lost for name, lost in missing.items() if name not in entries and name[0] in of_masks}
    lost |= {
        (mask, method): (not_compared_text(case), point.best_known[0].cell_id)
        for mask, case in of_masks.items()
        for method, point in case.other_protocol.items()
    }
    counting = {name.mask_label: case for name, case in kept.counting.items()}
    aside = {mask: case for mask, case in of_masks.items() if mask not in counting}
    columns = [_column(tally, len(counting)) for tally in tallies(counting, aside, "paper compat")]
    return HeatMap(
        int(seqlen),
        setting,
        str(world) if kind == "cp" else ALONE,
        direction,
        [mask for mask in order if mask in of_masks],
        columns,
        of_masks,
        entries,
        lost,
        len(counting),
        {name: reasons.get(cell_id, "") for name, (_, cell_id) in lost.items()},
    )


def _placed(case: Standing, entry: RankedMethod) -> Placed:
    cells = entry.point.best_known
    return Placed(
        entry.rate,
        entry.low,
        entry.high,
        median(median(cell.times_ms) for cell in cells),
        entry.share,
        entry.place,
        entry.is_tied or (entry.place == 1 and len(case.leaders) > 1),
        margin(case, entry.place),
        sum(len(cell.times_ms) for cell in cells),
        len(cells),
        cells[0].cell_id,
        not case.is_compared,
    )


def _column(tally: Tally, num_masks: int) -> ColumnFoot:
    worst = tally.worst
    ran_all = tally.num_cases == num_masks
    notes = [f"{share_text(worst.lowest)} with {left_out_text(worst)}"] if worst and worst.left_out else []
    notes += [] if ran_all else [f"{tally.num_cases} of {num_masks}"]
    least = (
        f"Worst: {worst_text(worst)} of the best, under {worst.where}"
        if worst
        else "It was compared with no other method."
    )
    lacking = (
        (tally.num_could_not, "could not"),
        (tally.num_not_asked, "not asked"),
        (tally.num_other_protocol, "measured by another protocol, not compared"),
    )
    rest = ", ".join(f"{count} {words}" for count, words in lacking if count)
    leads = f"leads alone on {tally.num_clear}, in a tie on {tally.num_shared}"
    tip = (
        f"{tally.method} ran {'all' if ran_all else f'{tally.num_cases} of {num_masks}'} masks"
        f"{f' ({rest})' if rest else ''}, {leads}.\n{least}"
    )
    return ColumnFoot(tally.method, worst.share if worst else None, "; ".join(notes), ran_all, tip)


def _missing(
    named: pd.DataFrame,
) -> tuple[dict[tuple[Any, ...], dict[tuple[str, str], tuple[str, str]]], dict[str, str]]:
    """(case → (mask, method) → (status, cell id), cell id → reason) of cells without a number."""
    missing: dict[tuple[Any, ...], dict[tuple[str, str], tuple[str, str]]] = {}
    reasons: dict[str, str] = {}
    for row in named[named.status != "ok"].itertuples():
        reasons.setdefault(row.cell_id, row.reason)
        key = (row.world, row.seqlen, row.setting, row.direction)
        missing.setdefault(key, {}).setdefault((row.mask_label, row.method), (row.status, row.cell_id))
    return missing, reasons


def _default(views: list[HeatMap]) -> HeatMap:
    """The view with the most ranks, then the longest length with nearly the maximum number of points, then
    the setting with the most points; forward.

    Points without a comparison count only if there are no comparisons at all.
    """
    views = [view for view in views if view.num_compared] or views

    def sizes(chosen: list[HeatMap], of: Callable[[HeatMap], Any]) -> dict[Any, int]:
        counts: dict[Any, int] = {}
        for view in chosen:
            counts[of(view)] = counts.get(of(view), 0) + (view.num_compared or len(view.entries))
        return counts

    for of, size in (
        (lambda view: view.ranks, lambda value: 0 if value == ALONE else int(value)),
        (lambda view: view.seqlen, int),
    ):
        counts = sizes(views, of)
        best = max(
            (value for value, count in counts.items() if count >= ENOUGH * max(counts.values())), key=size
        )
        views = [view for view in views if of(view) == best]
    counts = sizes(views, lambda view: view.setting)
    setting = max(sorted(counts), key=lambda value: counts[value])
    return min(
        (view for view in views if view.setting == setting),
        key=lambda view: list(DIRECTIONS).index(view.direction),
    )


def _sentence(compared: Cases, kind: str) -> str:
    """The leaders at the default setting, and the method with the best worst share among those that ran
    everything."""
    counting = compared.counting
    first, case = next(iter(counting.items()))
    ranks = "" if kind == "kernel" else f" on {plural(int(first.world), 'rank')}"
    where = (
        f"At {format_length(int(first.seqlen))} tokens{ranks}{f' ({first.setting})' if first.setting else ''}"
    )
    on = f" on {case.device}" if case.device and case.device not in first.setting else ""
    return f"{where}{on} {finding_text(counting, 'kernel' if kind == 'kernel' else 'strategy', _covered(counting))}"  # noqa: E501


def _covered(counting: dict[CaseKey, Standing]) -> str:
    """The masks and directions of the compared cases: "12 masks, forward and backward"."""
    compared = [key for key, case in counting.items() if case.is_compared]
    masks = {key.mask_label for key in compared}
    directions = {key.direction for key in compared}
    if len(directions) == 1:
        return plural(len(masks), "mask")
    if len(compared) == len(masks) * len(directions):
        return f"{plural(len(masks), 'mask')}, {' and '.join(DIRECTIONS.values())}"
    return f"{plural(len(masks), 'mask')}, not all of them in both directions"


def cells(decided: Decision) -> set[str]:
    """The cells of the views."""
    return {
        cell_id
        for view in decided.views
        for cell_id in (
            *(entry.cell_id for entry in view.entries.values()),
            *(cell_id for _, cell_id in view.missing.values()),
        )
    }
