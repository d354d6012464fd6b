"""The fastest methods for each mask and for each family of masks, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.core import by_numbers, format_length
from longca.lab.ranking import Standing, mean_standing
from longca.lab.ranking.sentences import field_text, lead_text, other_protocol_text, relation_text
from longca.lab.report.decide.cases import cases
from longca.lab.report.findings import at_largest
from longca.lab.report.look.labels import join
from longca.lab.report.series import DIRECTIONS, FAMILIES, Unit, labelled, mask_order, rate_unit
from longca.lab.store.text import names, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

FAMILY_TITLES = {
    "no documents": "Masks without documents",
    "documents": "Masks over documents",
    "block-sparse": "Block-sparse masks",
}
NOT_TIMED = "not timed"
Chosen = tuple[int, Standing]
"""(tokens, standing) of the judgement of a mask"""


@dataclass(frozen=True)
class Winner:
    """The leading method of one mask, or of one family of masks, in one direction."""

    method: str
    rate: str
    spread: str
    """the 95 % interval of the median for one mask; lowest and highest mask for a family"""
    rest: str
    """the lead, its relation, and the underlying data"""
    cell_id: str = ""


@dataclass(frozen=True)
class Row:
    """A mask or a family, and its fastest methods forward and backward."""

    title: str
    is_family: bool
    winners: dict[str, Winner | str]
    """direction → winner, or the reason for none"""


@dataclass(frozen=True)
class Ranking:
    """All rows of one setting: the row of a family precedes those of its masks."""

    setting: str
    """"" if the study has a single one"""
    length: str
    """the longest length if all masks share it; otherwise "", and each winner has its own length"""
    rows: list[Row]


def rankings(table: pd.DataFrame, kind: str = "kernel") -> list[Ranking]:
    """One ranking for each setting of kernels; for context parallelism ("cp") also one for each number of
    ranks and tokens.

    Settings without two comparable methods have none.
    """
    named = labelled(table)
    decided = cases(named, kind)
    of_kind = named[
        (named.kind == kind) & named.mask_label.isin({key.mask_label for key in decided.standings})
    ]
    families = dict(zip(of_kind.mask_label, of_kind.mask_family, strict=True))
    order = mask_order(of_kind) if len(of_kind) else []
    sizes: dict[tuple[Any, ...], dict[tuple[str, str, int], Standing]] = {}
    for key, case in decided.standings.items():
        size = (key.setting, key.world, key.seqlen) if kind == "cp" else (key.setting,)
        sizes.setdefault(size, {})[key.mask_label, key.direction, key.seqlen] = case
    unit = rate_unit(max((case.first.rate for case in decided.standings.values()), default=0.0))
    result = []
    for (setting, *size), of_size in sorted(
        sizes.items(), key=lambda item: (by_numbers(str(item[0][0])), item[0])
    ):
        ceilings = named[named.setting == setting].groupby("cell_id").ceiling_tflops.first().to_dict()
        chosen = at_largest(of_size)
        lengths = {seqlen for seqlen, case in chosen.values() if case.is_compared}
        tells = _Tells(unit, len(lengths) != 1, ceilings)
        rows = [
            row
            for family in FAMILIES
            for row in _family(
                [mask for mask in order if families[mask] == family], family, chosen, decided.repeats, tells
            )
        ]
        ranks = f"{size[0]} ranks × {format_length(size[1] // size[0])} tokens" if size else ""
        if any(isinstance(winner, Winner) for row in rows for winner in row.winners.values()):
            result.append(
                Ranking(
                    join(ranks, str(setting)),
                    format_length(int(min(lengths))) if len(lengths) == 1 else "",
                    rows,
                )
            )
    return result


def cells(ranked: Iterable[tuple[str, list[Ranking]]]) -> set[str]:
    """The cells of rankings.

    Args:
        found: (kind, rankings of that kind).
    """
    named = {
        winner.cell_id
        for _, kinds in ranked
        for ranking in kinds
        for row in ranking.rows
        for winner in row.winners.values()
        if isinstance(winner, Winner)
    }
    return named - {""}


@dataclass(frozen=True)
class _Tells:
    """Inputs of the texts of one setting."""

    unit: Unit
    length: bool
    """True if each text names its length"""
    ceilings: Mapping[str, float]

    def share(self, rate: float, cell_id: str) -> str:
        """The share of the rate of a matrix product; "" without one."""
        ceiling = self.ceilings.get(cell_id, float("nan"))
        return f", {percent(rate / ceiling)} of ceiling" if ceiling > 0 else ""


def _family(
    masks: Sequence[str],
    family: str,
    chosen: Mapping[tuple[str, str], Chosen],
    repeats: frozenset[str],
    tells: _Tells,
) -> list[Row]:
    masks = [mask for mask in masks if any((mask, direction) in chosen for direction in DIRECTIONS)]
    if not masks:
        return []
    counting = [mask for mask in masks if mask not in repeats] or masks
    rows = [
        Row(
            FAMILY_TITLES[family],
            True,
            {
                direction: _of_family(
                    [chosen[mask, direction][1] for mask in counting if (mask, direction) in chosen], tells
                )
                for direction in DIRECTIONS
            },
        )
    ]
    for mask in masks:
        rows.append(
            Row(
                mask,
                False,
                {
                    direction: _of_mask(*chosen[mask, direction], tells)
                    if (mask, direction) in chosen
                    else NOT_TIMED
                    for direction in DIRECTIONS
                },
            )
        )
    return rows


def _of_mask(seqlen: int, case: Standing, tells: _Tells) -> Winner | str:
    first = case.first
    if not case.is_compared:
        rest = (
            f"; {plural(len(case.not_asked), 'other')} not asked"
            if case.not_asked and not case.could_not
            else ""
        )
        rest += f"; {other_protocol_text(case)}" if case.other_protocol else ""
        return f"only {first.method} ran: {tells.unit.text(first.rate)} at {format_length(seqlen)}{rest}"
    cell_id = first.point.best_known[0].cell_id
    length = f", {format_length(seqlen)}" if tells.length else ""
    num_samples = sum(len(cell.times_ms) for cell in first.point.best_known)
    return Winner(
        first.method,
        tells.unit.text(first.rate),
        tells.unit.span(first.low, first.high),
        f"{_lead(case)}{tells.share(first.rate, cell_id)}{length}, n\u00a0=\u00a0{num_samples}",
        cell_id,
    )


def _of_family(members: Sequence[Standing], tells: _Tells) -> Winner | str:
    """The method with the highest geometric mean among those that ran every mask of the family that was
    requested from at least two methods."""
    if not members:
        return NOT_TIMED
    asked = [case for case in members if case.is_compared or case.could_not]
    if not asked:
        return (
            f"no two methods were asked for "
            f"{'any of ' if len(members) > 1 else ''}{plural(len(members), 'mask')}"
        )
    family = mean_standing(asked)
    if family is None:
        return f"none ran all {len(asked)} masks"
    first = family.first
    if not family.is_compared:
        return (
            f"only {first.method} ran {'all ' if len(asked) > 1 else ''}{plural(len(asked), 'mask')}: "
            f"{tells.unit.text(first.rate)}"
        )
    num_samples = sum(len(cell.times_ms) for case in asked for cell in _point(case, first.method).best_known)
    return Winner(
        first.method,
        tells.unit.text(first.rate),
        tells.unit.span(first.low, first.high),
        f"{_lead(family)}{tells.share(first.rate, first.point.best_known[0].cell_id)}, "
        f"n\u00a0=\u00a0{num_samples}",
    )


def _point(case: Standing, method: str) -> Any:
    entry = case.entry(method)
    assert entry
    return entry.point


def _lead(case: Standing) -> str:
    """ "8.0 % faster than fa4 (4.1 to 12 %); two devices of one model; first of 9; 3 could not"."""
    assert case.lead and case.second
    tied = case.leaders[1:]
    lead = next(entry.behind for entry in case.entries if entry.method in tied) if tied else case.lead
    assert lead
    return (
        f"{lead_text(lead, names(tied) if tied else case.second.method)}; {relation_text(case)}; "
        f"{field_text(case)}"
    )
