"""Views: the heat map of each setting and direction, for the page's first picture, its switches and its ranking."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, Any

from longca.core.cell import AS_RELEASED
from longca.core.units import format_length
from longca.report.decide.cases import Standing, cases, num_cases, num_open, standings
from longca.report.rows import UNSAFE
from longca.report.series import DIRECTIONS, join, labelled, mask_order, rate_unit, without_repeats
from longca.store.table import is_ranked
from longca.store.text import number, percent, plural

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

ENOUGH = 0.75  # of the most points: the default is the largest setting with so many
ALONE = "alone"  # in place of a number of ranks: kernels on one device
ASIDE = "Rows “as released” are never ranked: the page of the whole study has them beside this project's rows. "
PALEST = 0.4  # this share and less has the palest colour
STRONG = 68  # percent of the strongest colour from which text has the colour of the ground


@dataclass(frozen=True)
class Placed:
    """One method in one case. Rates are in TFLOP/s of one device, times in ms."""

    tflops: float
    low: float
    high: float
    ms: float
    share: float
    place: int
    tied: bool
    num_samples: int
    num_cells: int
    cell_id: str
    is_alone: bool
    """no other method ran the mask, so that its share and its place say nothing"""

    @property
    def strength(self) -> int:
        """Percent of the strongest colour; differences between the best ones show most."""
        return round(100 * (max(self.share - PALEST, 0) / (1 - PALEST)) ** 1.5)

    @property
    def is_strong(self) -> bool:
        return self.strength > STRONG and not self.is_alone


@dataclass(frozen=True)
class HeatMap:
    """One setting and direction."""

    seqlen: int
    setting: str
    ranks: str
    direction: str
    masks: list[str]
    standings: list[Standing]
    entries: dict[tuple[str, str], Placed]
    """(mask, method) → its result"""
    missing: dict[tuple[str, str], tuple[str, str]]
    """(mask, method) → (status, cell id) of what has no number"""
    num_counted: int
    """of the masks: repeats do not count (`longca.report.series.is_repeat`)"""

    @property
    def has_repeats(self) -> bool:
        return self.num_counted < len(self.masks)

    @property
    def num_compared(self) -> int:
        """The results on masks that several methods ran."""
        return sum(count for count in self._methods_of_masks.values() if count > 1)

    @property
    def opening(self) -> str:
        """The mask that is shown first: the first that several methods ran, or else the first."""
        return next((mask for mask in self.masks if self._methods_of_masks[mask] > 1), self.masks[0])

    @cached_property
    def _methods_of_masks(self) -> Counter[str]:
        return Counter(mask for mask, _ in self.entries)

    def ranking(self, mask: str) -> list[tuple[str, Placed]]:
        """The methods of one mask, the best first."""
        return sorted(((method, entry) for (name, method), entry in self.entries.items() if name == mask),
                      key=lambda item: item[1].place)


@dataclass(frozen=True)
class Decision:
    """All views, and the one that the page shows first."""

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
    found = {kind: points for kind in ("kernel", "cp") if (named.kind == kind).any() and len(points := cases(table, kind))}
    if not found:
        return None
    order, views = mask_order(named), []
    for kind, points in found.items():
        of_kind = named[named.kind == kind]
        times, missing = _times(of_kind), _missing(of_kind)
        for key, rows in points.groupby(["world", "seqlen", "setting", "direction"], sort=True):
            views.append(_view(kind, key, rows, times, missing.get(key, {}), order))
    default = _default(views)
    kind = "kernel" if default.ranks == ALONE else "cp"
    points = found[kind]
    chosen = points[(points.seqlen == default.seqlen) & (points.setting == default.setting)]
    chosen = chosen if kind == "kernel" else chosen[chosen.world == int(default.ranks)]
    finding = f"{ASIDE if aside else ''}{_sentence(without_repeats(chosen), kind)}"
    return Decision(views, default, finding, [mask for mask in order if any(mask in view.masks for view in views)],
                    dict(zip(named.mask_label, named["mask"], strict=True)))


def _view(kind: str, key: tuple[Any, ...], rows: pd.DataFrame, times: dict[tuple[Any, ...], float],
          missing: dict[tuple[str, str], tuple[str, str]], order: list[str]) -> HeatMap:
    world, seqlen, setting, direction = key
    entries = {(row.mask_label, row.method): Placed(
        row.value, row.low, row.high, times[(*key, row.mask_label, row.method)], row.share, row.place, bool(row.tied), row.num_samples,
        row.num_cells, row.cell_ids.split(" ")[0], row.num_methods == 1) for row in rows.itertuples()}
    seen = set(rows.mask_label)
    return HeatMap(int(seqlen), setting, str(world) if kind == "cp" else ALONE, direction, [mask for mask in order if mask in seen],
                standings(rows), entries, {name: lost for name, lost in missing.items() if name not in entries and name[0] in seen},
                num_cases(without_repeats(rows)))


def _times(named: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    ok = named[named.status == "ok"]
    return ok.groupby(["world", "seqlen", "setting", "direction", "mask_label", "method"]).time_ms_median.median().astype(float).to_dict()


def _missing(named: pd.DataFrame) -> dict[tuple[Any, ...], dict[tuple[str, str], tuple[str, str]]]:
    found: dict[tuple[Any, ...], dict[tuple[str, str], tuple[str, str]]] = {}
    for row in named[named.status != "ok"].itertuples():
        key = (row.world, row.seqlen, row.setting, row.direction)
        found.setdefault(key, {}).setdefault((row.mask_label, row.method), (row.status, row.cell_id))
    return found


def _default(views: list[HeatMap]) -> HeatMap:
    """With the most ranks, then of the longest length with nearly as many points as any, then of the setting with the most; forward.

    Points that nothing is compared with count only where nothing is compared at all.
    """
    views = [view for view in views if view.num_compared] or views

    def sizes(chosen: list[HeatMap], of: Callable[[HeatMap], Any]) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for view in chosen:
            found[of(view)] = found.get(of(view), 0) + (view.num_compared or len(view.entries))
        return found

    for of, size in ((lambda view: view.ranks, lambda value: 0 if value == ALONE else int(value)), (lambda view: view.seqlen, int)):
        counts = sizes(views, of)
        best = max((value for value, count in counts.items() if count >= ENOUGH * max(counts.values())), key=size)
        views = [view for view in views if of(view) == best]
    counts = sizes(views, lambda view: view.setting)
    setting = max(sorted(counts), key=lambda value: counts[value])
    return min((view for view in views if view.setting == setting), key=lambda view: list(DIRECTIONS).index(view.direction))


def _sentence(found: pd.DataFrame, kind: str) -> str:
    """The leader at the default setting, and the method that loses least of those that run everything."""
    thing = "kernel" if kind == "kernel" else "strategy"
    first = found.iloc[0]
    ranks = "" if kind == "kernel" else f" on {plural(int(first.world), 'rank')}"
    setting = f" ({first.setting})" if first.setting else ""
    where = f"At {format_length(int(first.seqlen))} tokens{ranks}{setting}"
    compared = found[found.num_methods > 1]
    if not len(compared):
        return f"{where} no two {thing}s ran the same: there is nothing to compare."
    masks, directions, total = compared.mask_label.nunique(), compared.direction.nunique(), num_cases(found)
    contested = num_cases(compared)
    what = plural(masks, "mask") if directions == 1 else f"{plural(masks, 'mask')}, {' and '.join(DIRECTIONS.values())}" \
        if contested == masks * directions else f"{plural(masks, 'mask')}, not all of them in both directions"
    them = "them all" if total == contested else f"all {plural(total, 'case')} that were timed"
    table = standings(found)
    winners = sorted((one for one in table if one.num_first), key=lambda one: (-one.num_first, one.method))
    counts = ", ".join(f"{one.method} on {one.num_first}" for one in winners[:4])
    more = f", {plural(len(winners) - 4, 'other')} on the rest" if len(winners) > 4 else ""
    doubt = num_open(compared)
    noise = f"; in {doubt} the first two lie within the noise" if doubt else ""
    if len(winners) == 1:
        opening = f"{where} {winners[0].method} is the fastest {thing} in all {plural(contested, 'case')} ({what}{noise})."
    else:
        opening = f"{where} no {thing} is the fastest everywhere: of {plural(contested, 'case')} ({what}), {counts}{more}{noise}."
    everywhere = sorted(((one, one.worst) for one in table if one.num_cases == total and one.worst is not None),
                        key=lambda pair: (-pair[1], pair[0].method))
    if not everywhere:
        return f"{opening} No {thing} runs {them}."
    best, worst = everywhere[0]
    if best.num_first == contested:
        return opening
    least = f"Of the {len(everywhere)} that run {them}, {best.method} loses least" if len(everywhere) > 1 else \
        f"And only {best.method} runs {them}"
    return f"{opening} {least}: at its worst it reaches {share_text(worst)} of the best."


def cells(found: Decision) -> set[str]:
    """The cells that the views name."""
    return {cell_id for view in found.views for cell_id in (*(entry.cell_id for entry in view.entries.values()),
                                                            *(cell_id for _, cell_id in view.missing.values()))}


def views_json(found: Decision, rows: dict[str, int]) -> str:
    """All views for the page's script, safe inside a script element.

    Args:
        rows: cell → its row in the page's records.
    """
    methods = sorted({one.method for view in found.views for one in view.standings})
    mask_at, method_at = ({name: index for index, name in enumerate(names)} for names in (found.masks, methods))
    views = [{
        "seqlen": view.seqlen, "heads": view.setting, "ranks": view.ranks, "direction": view.direction,
        "masks": [mask_at[mask] for mask in view.masks],
        "counted": view.num_counted,
        "standings": [[method_at[one.method], one.num_cases, one.num_first,
                       *((None, None) if one.worst is None else (_short(one.worst), mask_at[one.where]))] for one in view.standings],
        "entries": [[mask_at[mask], method_at[method], _short(entry.tflops), _short(entry.low), _short(entry.high), _short(entry.ms),
                     _short(entry.share), entry.place, int(entry.tied), entry.num_samples, entry.num_cells, rows[entry.cell_id]]
                    for (mask, method), entry in view.entries.items()],
        "missing": [[mask_at[mask], method_at[method], status, rows[cell_id]]
                    for (mask, method), (status, cell_id) in view.missing.items() if method in method_at],
    } for view in found.views]
    shown = found.default
    content = {"palest": PALEST, "strong": STRONG, "masks": found.masks, "names": [found.names[mask] for mask in found.masks],
               "methods": methods, "views": views,
               "default": {"seqlen": shown.seqlen, "heads": shown.setting, "ranks": shown.ranks, "direction": shown.direction,
                           "mask": shown.opening}}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).translate(UNSAFE)


def described(view: HeatMap, found: Decision) -> str:
    """The setting of a view: "32K tokens · 4 ranks × 8K · 64:8 heads · backward"."""
    ranks = f"{view.ranks} ranks × {format_length(view.seqlen // int(view.ranks))}" if view.ranks != ALONE else \
        "kernels alone" if any(other.ranks != ALONE for other in found.views) else ""
    return join(f"{format_length(view.seqlen)} tokens", ranks, view.setting, DIRECTIONS[view.direction])


def verdict(view: HeatMap, mask: str) -> str:
    """The winner of one case and its lead: "band is the fastest of 12: 512 TFLOP/s, 8.0 % faster than fa4"."""
    ranking = view.ranking(mask)
    unit = rate_unit(max(entry.tflops for entry in view.entries.values()))
    (first, best), *others = ranking
    rate = f"{unit.text(best.tflops)}, {number(best.ms)} ms"
    if not others:
        return f"Only {first} ran: {rate}. There is nothing to compare it with."
    tied = [method for method, entry in others if entry.tied]
    if tied:
        rest = next(((method, entry) for method, entry in others if not entry.tied), None)
        after = f"; then {rest[0]} at {share_text(rest[1].share)}" if rest else ""
        return f"A tie of {len(tied) + 1} within the noise: {first} ({rate}) and {', '.join(tied)}{after}."
    second, behind = others[0]
    return f"{first} is the fastest of {len(ranking)}: {rate}, {ahead(best.tflops / behind.tflops)} {second}."


def share_text(share: float) -> str:
    """0.967 → "96 %". It is never rounded up: only the best has 100 %."""
    return f"{floor(100 * share)} %"


def ahead(lead: float) -> str:
    """1.08 → "8.0 % faster than"; 3.1 → "3.10 times as fast as"."""
    return f"{percent(lead - 1)} faster than" if lead < 2 else f"{number(lead)} times as fast as"


def _short(value: float) -> float:
    """Three digits more than are shown: with fewer, the script would round otherwise than this module."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
