"""Views of forward and backward together: a training step's attention, ranked by the sum of both times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longca.lab.ranking import total_standing
from longca.lab.report.decide.views import placed_in
from longca.lab.report.series import DIRECTIONS

if TYPE_CHECKING:
    from longca.lab.report.decide.heat_map import HeatMap, Placed
    from longca.lab.report.decide.views import Switches

TOTAL = "fwd+bwd"
WORDS = {**DIRECTIONS, TOTAL: "forward and backward together"}


def total_views(views: Sequence[HeatMap]) -> list[HeatMap]:
    """One view for each setting that has views of both directions, of the masks that are in both.

    A method without a number in one of them is missing, with that direction in its status.
    """
    alike: dict[Switches, dict[str, HeatMap]] = defaultdict(dict)
    for view in views:
        alike[view.switches._replace(direction=TOTAL)][view.direction] = view
    totals = [
        _total(switches, {way: of_setting[way] for way in DIRECTIONS})
        for switches, of_setting in alike.items()
        if of_setting.keys() >= DIRECTIONS.keys()
    ]
    return [total for total in totals if total.masks]


def _total(switches: Switches, views: dict[str, HeatMap]) -> HeatMap:
    first, *others = views.values()
    cases = {}
    entries: dict[tuple[str, str], Placed] = {}
    missing: dict[tuple[str, str], tuple[str, str]] = {}
    for mask in first.masks:
        if not all(mask in other.cases for other in others):
            continue
        case, left_out = total_standing({WORDS[way]: view.cases[mask] for way, view in views.items()})
        lost = {
            method: (f"{WORDS[way]} {status}", cell_id)
            for way, view in reversed(views.items())
            for (name, method), (status, cell_id) in view.missing.items()
            if name == mask
        }
        if case is None:
            continue
        cases[mask] = case
        entries |= {(mask, entry.method): placed_in(case, entry) for entry in case.entries}
        missing |= {(mask, method): (reason, "") for method, reason in left_out.items()}
        missing |= {(mask, method): why for method, why in lost.items() if case.entry(method) is None}
    masks = [mask for mask in first.masks if mask in cases]
    keys = {mask: first.keys[mask]._replace(direction=TOTAL) for mask in masks}
    return replace(
        first,
        switches=switches,
        masks=masks,
        columns=[],
        cases=cases,
        entries=entries,
        missing=missing,
        num_counted=len(masks),
        reasons={},
        keys=keys,
    )
