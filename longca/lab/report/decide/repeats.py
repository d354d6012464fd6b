"""The A/A test of a page: repeats of identical cells, and the share that the tie rule calls different."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.lab.ranking import RELATIONS, Relation, RepeatPair, Resolutions, is_told_apart, words_of
from longca.lab.ranking.table import pairs_of
from longca.lab.report.series import RESOLUTIONS, with_beside
from longca.lab.store.text import percent, plural

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.ranking import Standing

_Key = tuple[str, Relation, bool]  # device model, relation, with rests


@dataclass(frozen=True)
class RepeatRow:
    """One relation on one device model, with or without rests, as used by the page's comparisons."""

    device: str
    relation: str
    num_cases: int
    """cases of the page whose first two methods are compared in this relation"""
    resolution: str
    basis: str
    """the number of underlying repeats"""
    known: str
    """share of these that the rule calls different, by resolutions computed without them; "" if unknown"""
    own: str
    """the same for the page's own repeats; "" without any"""


def repeat_rows(named: pd.DataFrame, standings: Iterable[Standing]) -> list[RepeatRow]:
    """A row for each model and relation of a comparison or a repeat of the page.

    Args:
        named: `longca.lab.report.series.labelled` table of the page.
        standings: standings of all its cases.
    """
    resolutions: Resolutions = named.attrs[RESOLUTIONS]
    pairs: dict[_Key, list[RepeatPair]] = {}
    for pair in pairs_of(with_beside(named)):
        pairs.setdefault((pair.first.device, pair.relation, pair.rests), []).append(pair)
    counts: dict[_Key, int] = {}
    for case in standings:
        if case.lead:
            key = case.device, case.lead.relation, case.lead.rests
            counts[key] = counts.get(key, 0) + 1
    keys = sorted({*pairs, *counts}, key=lambda key: (key[0], RELATIONS.index(key[1]), key[2]))
    return [_row(key, counts.get(key, 0), resolutions, pairs.get(key, [])) for key in keys]


def _row(key: _Key, num_cases: int, resolutions: Resolutions, pairs: list[RepeatPair]) -> RepeatRow:
    device, relation, rests = key
    resolution = resolutions.of(device, relation, rests)
    basis = f"{plural(resolution.num_pairs, 'repeat')}, {words_of(resolution.relation, resolution.rests)}"
    basis += f" ({resolution.device})" if resolution.device != device else ""
    basis += " of this study" if resolution.is_own else ""
    basis += ": borrowed" if resolution.borrowed_by else ""
    known = (
        ""
        if resolution.num_apart_held_out is None
        else _share(resolution.num_apart_held_out, resolution.num_pairs)
    )
    own = _share(sum(is_told_apart(pair, resolutions) for pair in pairs), len(pairs)) if pairs else ""
    return RepeatRow(device, words_of(relation, rests), num_cases, resolution.percent, basis, known, own)


def _share(apart: int, count: int) -> str:
    return f"{percent(apart / count)} of {count}"
