"""Views: the heat map of each setting and direction, for the page's first picture, its switches and its
ranking."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from longca.core import AS_RELEASED, format_length
from longca.lab.ranking import RankedMethod, Standing, Tally, tallies
from longca.lab.ranking.sentences import (
    finding_text,
    left_out_text,
    margin,
    not_compared_text,
    share_text,
    worst_text,
)
from longca.lab.report.decide.cases import CaseKey, Cases, cases
from longca.lab.report.decide.heat_map import ALONE, ColumnFoot, HeatMap, Placed, Switches
from longca.lab.report.look.labels import params_of
from longca.lab.report.questions.own import own_finding
from longca.lab.report.series import DIRECTIONS, labelled, mask_order
from longca.lab.store.table import is_ranked
from longca.lab.store.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

ENOUGH = 0.75  # of the most points: the default is the largest setting with so many
ASIDE = (
    "Rows “as released” are never ranked: the page of the whole study has them beside this project's rows."
)
# kinds of masks, where they are apart
DENSE = "dense"
SPARSE = "block-sparse"


@dataclass(frozen=True)
class Decision:
    """All views, and the initial one."""

    views: list[HeatMap]
    default: HeatMap
    finding: str
    """what the study itself asks, if that is something else; then who leads; then what is not ranked"""
    judged: Cases
    """the cases of the finding, all of the initial view's setting"""
    masks: list[str]
    names: dict[str, str]
    """mask's label → its pattern"""


def decision(table: pd.DataFrame, *, apart: bool = False) -> Decision | None:
    """None if nothing was timed.

    Args:
        apart: dense and block-sparse masks are in maps of their own, and kernels on one device come first.
    """
    named = labelled(table)
    aside = bool(named.kernel.astype(str).str.startswith(AS_RELEASED).any())
    own = "" if apart else own_finding(named)
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
        rows = named[named.kind == kind]
        outcomes = _Outcomes(rows)
        traits = _traits(rows)
        maps = _maps(of_kind, traits, kind, apart)
        views += [
            _view(switches, maps[switches], outcomes, order, traits)
            for switches in sorted(maps, key=_order_of)
        ]
    default = _default(views, alone=apart)
    of_default = by_kind["kernel" if default.ranks == ALONE else "cp"]
    names = [
        key
        for view in views
        if view.switches._replace(direction="") == default.switches._replace(direction="")
        for key in view.keys.values()
    ]
    chosen = {key: case for key, case in of_default.standings.items() if key in names}
    judged = Cases(chosen, of_default.repeats)
    finding = _sentence(judged, default)
    return Decision(
        views,
        default,
        " ".join(filter(None, (f"{own}." if own else "", finding, ASIDE if aside else ""))),
        judged,
        [mask for mask in order if any(mask in view.masks for view in views)],
        dict(zip(named.mask_label, named["mask"], strict=True)),
    )


class _Trait(NamedTuple):
    """The properties of a case's rows that its key does not have."""

    family: str
    gpu: str
    call: str
    corpus: str
    """"" unless there are several"""
    window: str
    """likewise"""
    own_corpus: str
    params: str


Traits = dict[tuple[str, str, int], _Trait]
"""(mask, setting, length) → traits"""


def _traits(named: pd.DataFrame) -> Traits:
    keys = ["mask_label", "setting", "seqlen"]
    columns = ["mask_family", "device_choice", "call_choice", "corpus_choice", "window_choice", "corpus"]
    rows = named.drop_duplicates(keys)
    values = zip(*(rows[name].tolist() for name in [*columns, "mask_params"]), strict=True)
    names = zip(*(rows[name].tolist() for name in keys), strict=True)
    return {name: _Trait(*map(str, value)) for name, value in zip(names, values, strict=True)}


def _maps(of_kind: Cases, traits: Traits, kind: str, apart: bool) -> dict[Switches, Cases]:
    """The cases of each heat map. Masks without a corpus or a window are in the maps of all of them."""
    alike: dict[Switches, dict[CaseKey, _Trait]] = {}
    for key in of_kind.standings:
        trait = traits[key.mask_label, key.setting, key.seqlen]
        switches = Switches(
            (SPARSE if trait.family == SPARSE else DENSE) if apart else "",
            trait.gpu,
            str(key.world) if kind == "cp" else ALONE,
            int(key.seqlen),
            trait.call,
            "",
            "",
            key.direction,
        )
        alike.setdefault(switches, {})[key] = trait
    maps = {}
    for switches, keys in alike.items():
        corpora = {trait.corpus for trait in keys.values()} - {""} or {""}
        windows = {trait.window for trait in keys.values()} - {""} or {""}
        for corpus, window in product(corpora, windows):
            chosen = {
                key: of_kind.standings[key]
                for key, trait in keys.items()
                if trait.corpus in ("", corpus) and trait.window in ("", window)
            }
            maps[switches._replace(corpus=corpus, window=window)] = Cases(chosen, of_kind.repeats)
    return maps


def _order_of(switches: Switches) -> tuple[Any, ...]:
    ranks = 0 if switches.ranks == ALONE else int(switches.ranks)
    return (
        switches.family,
        ranks,
        switches.seqlen,
        switches.gpu,
        switches.heads,
        switches.corpus,
        switches.window,
        switches.direction,
    )


class _Outcomes:
    """The outcomes of rows without a number."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.of_case: dict[tuple[Any, ...], dict[str, tuple[str, str]]] = {}
        """(mask, setting, length, ranks, direction) → method → (status, cell id)"""
        self.reasons: dict[str, str] = {}
        """cell id → recorded reason"""
        for row in rows[rows.status != "ok"].itertuples():
            self.reasons.setdefault(row.cell_id, row.reason)
            key = CaseKey(row.mask_label, row.direction, row.setting, row.world, row.seqlen)
            self.of_case.setdefault(key, {}).setdefault(row.method, (row.status, row.cell_id))


def _view(switches: Switches, kept: Cases, outcomes: _Outcomes, order: list[str], traits: Traits) -> HeatMap:
    keys = {key.mask_label: key for key in kept.standings}
    of_masks = {mask: kept.standings[key] for mask, key in keys.items()}
    entries = {
        (mask, entry.method): placed_in(case, entry)
        for mask, case in of_masks.items()
        for entry in case.entries
    }
    lost = {
        (mask, method): outcome
        for mask, key in keys.items()
        for method, outcome in outcomes.of_case.get(key, {}).items()
        if (mask, method) not in entries
    }
    lost |= {
        (mask, method): (not_compared_text(case), point.best_known[0].cell_id)
        for mask, case in of_masks.items()
        for method, point in case.other_protocol.items()
    }
    counting = {name.mask_label: case for name, case in kept.counting.items()}
    aside = {mask: case for mask, case in of_masks.items() if mask not in counting}
    columns = [_column(tally, len(counting)) for tally in tallies(counting, aside, "paper compat")]
    here = [traits[key.mask_label, key.setting, key.seqlen] for key in keys.values()]
    windows = {params_of(trait.params).get("window", "") for trait in here} - {""}
    return HeatMap(
        switches,
        [mask for mask in order if mask in of_masks],
        columns,
        of_masks,
        entries,
        lost,
        len(counting),
        {name: outcomes.reasons.get(cell_id, "") for name, (_, cell_id) in lost.items()},
        keys,
        tuple(sorted({trait.own_corpus for trait in here} - {""})),
        tuple(sorted(windows, key=_number)),
    )


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (0, text)


def placed_in(case: Standing, entry: RankedMethod) -> Placed:
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
        sum(cell.num_samples for cell in cells),
        sum(cell.num_cells for cell in cells),
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
    ran = (
        f"ran {'all' if ran_all else f'{tally.num_cases} of {num_masks}'} masks"
        f"{f' ({rest})' if rest else ''}, {leads}."
    )
    return ColumnFoot(tally.method, worst.share if worst else None, "; ".join(notes), ran_all, ran, least)


def _default(views: list[HeatMap], *, alone: bool) -> HeatMap:
    """The view with the most ranks, then the longest length with nearly the maximum number of points, then
    the setting with the most points; forward.

    Points without a comparison count only if there are no comparisons at all.

    Args:
        alone: kernels on one device before ranks, and dense masks before block-sparse ones.
    """
    if alone:
        kernels = [view for view in views if view.ranks == ALONE] or views
        views = [view for view in kernels if view.switches.family == DENSE] or kernels
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
    counts = sizes(views, lambda view: (view.setting, view.switches.window))
    setting = max(sorted(counts), key=lambda value: counts[value])
    return min(
        (view for view in views if (view.setting, view.switches.window) == setting),
        key=lambda view: list(DIRECTIONS).index(view.direction),
    )


def _sentence(compared: Cases, view: HeatMap) -> str:
    """The leaders at the default setting, and the method with the best worst share among those that ran
    everything."""
    counting = compared.counting
    case = next(iter(counting.values()))
    on = f" on {case.device}" if case.device and case.device not in view.setting else ""
    finding = finding_text(counting, "kernel" if view.ranks == ALONE else "strategy", _covered(counting))
    return f"At {setting_text(view)}{on} {finding}"


def setting_text(view: HeatMap) -> str:
    """ "128K tokens on 4 ranks (64:8 heads)"."""
    ranks = "" if view.ranks == ALONE else f" on {plural(int(view.ranks), 'rank')}"
    setting = f" ({view.setting})" if view.setting else ""
    return f"{format_length(view.seqlen)} tokens{ranks}{setting}"


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
