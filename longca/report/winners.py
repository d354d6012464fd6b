"""The fastest methods for each mask and for each family of masks, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.units import format_length
from longca.report.findings import contested, fastest
from longca.report.rates import rate_points
from longca.report.series import DIRECTIONS, FAMILIES, Unit, is_repeat, join, labelled, rate_unit, without_repeats
from longca.store.text import number, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

FAMILY_TITLES = {"no documents": "Masks without documents", "documents": "Masks over documents",
                 "block-sparse": "Block-sparse masks"}
NOT_TIMED = "not timed"
MOST_NAMES = 4  # of methods that are not ranked; of more their number is told


@dataclass(frozen=True)
class Winner:
    """The fastest method of one mask, or of one family of masks, in one direction."""

    method: str
    rate: str
    spread: str
    """quartiles of one mask; lowest and highest mask of a family"""
    rest: str
    """by how much it leads, and the data behind the number"""
    cell_id: str = ""


@dataclass(frozen=True)
class Row:
    """A mask or a family, and its fastest methods forward and backward."""

    title: str
    is_family: bool
    winners: dict[str, Winner | str]
    """direction → winner, or why there is none"""


@dataclass(frozen=True)
class Ranking:
    """All rows of one setting: a family's row stands before those of its masks."""

    setting: str
    """"" where the study has one"""
    length: str
    """the longest one, where all masks share it; else ""; then each winner names its own"""
    rows: list[Row]


def rankings(table: pd.DataFrame, kind: str = "kernel") -> list[Ranking]:
    """One for each setting of the kernels; of context parallelism ("cp") one for each number of ranks and of tokens besides.

    There is none of a setting where no two methods ran the same.
    """
    named = labelled(table)
    data = rate_points(named, kind, ["direction", "seqlen", "world"])
    data = data.assign(is_repeat=is_repeat(data, named))
    families = dict(zip(named.mask_label, named.mask_family, strict=True))
    unit = rate_unit(data.value.max())
    found = []
    for (setting, *size), points in data.groupby(["setting", "world", "seqlen"] if kind == "cp" else ["setting"], sort=True):
        ceilings = named[named.setting == setting].groupby("cell_id").ceiling_tflops.first().to_dict()
        lengths = set(contested(fastest(points, ["mask_label", "direction"])).seqlen)
        length = format_length(int(min(lengths))) if len(lengths) == 1 else ""
        of_points = points.mask_label.map(families)
        rows = [row for family in FAMILIES for row in _family(points[of_points == family], family, unit, not length, ceilings)]
        ranks = f"{size[0]} ranks × {format_length(size[1] // size[0])} tokens" if size else ""
        if any(isinstance(winner, Winner) for row in rows for winner in row.winners.values()):
            found.append(Ranking(join(ranks, str(setting)), length, rows))
    return found


def cells(found: Iterable[tuple[str, list[Ranking]]]) -> set[str]:
    """The cells that rankings name.

    Args:
        found: (kind, rankings of that kind).
    """
    named = {winner.cell_id for _, kinds in found for ranking in kinds for row in ranking.rows for winner in row.winners.values()
             if isinstance(winner, Winner)}
    return named - {""}


def _family(members: pd.DataFrame, family: str, unit: Unit, tell_length: bool, ceilings: dict[str, float]) -> list[Row]:
    if not len(members):
        return []
    winners = fastest(members, ["mask_label", "direction"])
    once = without_repeats(members)
    best: dict[str, Winner | str] = {direction: _of_family(once, winners, direction, unit, ceilings) for direction in DIRECTIONS}
    rows = [Row(FAMILY_TITLES[family], True, best)]
    for label in dict.fromkeys(members.mask_label):
        found: dict[str, Winner | str] = {}
        for direction in DIRECTIONS:
            row = winners[(winners.mask_label == label) & (winners.direction == direction)]
            found[direction] = _of_mask(row.iloc[0], unit, tell_length, ceilings) if len(row) else NOT_TIMED
        rows.append(Row(label, False, found))
    return rows


def _of_mask(row: pd.Series, unit: Unit, tell_length: bool, ceilings: dict[str, float]) -> Winner | str:
    if not row.second:
        return f"only {row.method} ran: {unit.text(row.value)} at {format_length(int(row.seqlen))}"
    lead = f"{_ahead(row.lead, row.second) if row.clear else f'a tie with {row.second}, within the noise'}; first of {row.num_methods}"
    length = f", {format_length(int(row.seqlen))}" if tell_length else ""
    cell_id = row.cell_ids.split(" ")[0]
    share = _share(row.value, ceilings[cell_id])
    return Winner(row.method, unit.text(row.value), unit.span(row.low, row.high),
                  f"{lead}{share}{length}, n\u00a0=\u00a0{row.num_samples}", cell_id)


def _of_family(members: pd.DataFrame, winners: pd.DataFrame, direction: str, unit: Unit,
               ceilings: dict[str, float]) -> Winner | str:
    """The method with the highest geometric mean among those that ran every mask of the family.

    Args:
        members: points of the family's masks without repeats.
        winners: the fastest of each mask, repeats included.
    """
    import numpy as np

    asked = winners[(winners.direction == direction) & winners.mask_label.isin(set(members.mask_label))]
    if not len(asked):
        return NOT_TIMED
    timed = members[(members.direction == direction) & members.value.notna()]
    timed = timed.merge(asked[["mask_label", "seqlen"]], on=["mask_label", "seqlen"])
    complete = {method: rows for method, rows in timed.groupby("method") if rows.mask_label.nunique() == len(asked)}
    if not complete:
        return f"none ran all {len(asked)} masks"
    means = {method: float(np.exp(np.log(rows.value.astype(float)).mean())) for method, rows in complete.items()}
    first, *others = sorted(means, key=lambda method: -means[method])
    if not others:
        return f"only {first} ran {'all ' if len(asked) > 1 else ''}{plural(len(asked), 'mask')}: {unit.text(means[first])}"
    lead = f"{_ahead(means[first] / means[others[0]], others[0])}; first of {len(means)}"
    missing = sorted(set(timed.method) - set(complete))
    without = f"; not ranked: {', '.join(missing) if len(missing) <= MOST_NAMES else f'{len(missing)} others'}" if missing else ""
    rows = complete[first]
    share = _share(means[first], ceilings[rows.cell_ids.iloc[0].split(" ")[0]])
    return Winner(first, unit.text(means[first]), unit.span(rows.value.min(), rows.value.max()),
                  f"{lead}{share}, n\u00a0=\u00a0{int(rows.num_samples.sum())}{without}")


def _ahead(lead: float, second: str) -> str:
    """4 % ahead of fa4; 2.30× naive."""
    return f"{percent(lead - 1)} ahead of {second}" if lead < 2 else f"{number(lead)}× {second}"


def _share(rate: float, ceiling: float) -> str:
    """The share of a matrix product's rate; "" where none was measured."""
    return f", {percent(rate / ceiling)} of ceiling" if ceiling > 0 else ""
