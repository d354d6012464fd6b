"""Cases: one mask in one direction at one setting, with the standing of all its methods.

Repeats of a mask in another definition (`longca.lab.report.series.is_repeat`) have cases, but do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from longca.lab.ranking import Standing
from longca.lab.ranking.table import standings
from longca.lab.report.series import RESOLUTIONS, is_repeat, labelled, with_beside
from longca.lab.store.table import is_deterministic, is_ranked

if TYPE_CHECKING:
    import pandas as pd


class CaseKey(NamedTuple):
    """The case's name; the setting includes the device model if a table has several."""

    mask_label: str
    direction: str
    setting: str
    world: int
    seqlen: int


@dataclass(frozen=True)
class Cases:
    """The standings of all cases of one kind of method."""

    standings: dict[CaseKey, Standing]
    repeats: frozenset[str]
    """labels of uncounted masks"""

    def where(self, **fields: object) -> Cases:
        """The cases whose keys have these values."""
        chosen = {
            key: case
            for key, case in self.standings.items()
            if all(getattr(key, name) == value for name, value in fields.items())
        }
        return Cases(chosen, self.repeats)

    @property
    def counting(self) -> dict[CaseKey, Standing]:
        """All cases except repeats, or repeats if there are no others."""
        chosen = {key: case for key, case in self.standings.items() if key.mask_label not in self.repeats}
        return chosen or self.standings


def cases(table: pd.DataFrame, kind: str, *, deterministic: bool = False) -> Cases:
    """The cases of a table, ranked by `longca.lab.ranking`.

    Args:
        kind: "kernel" or "cp".
        deterministic: only backward, among methods whose gradients were found to have the same bits in every
            run.
    """
    named = labelled(table)
    rows = with_beside(named)
    rows = rows[rows.kind == kind]
    if deterministic:
        rows = rows[is_deterministic(rows)]
    rows = rows[is_ranked(rows)]
    by_key = {
        CaseKey(*key): case
        for key, case in standings(rows, CaseKey._fields, resolutions=named.attrs[RESOLUTIONS]).items()
    }
    masks = rows.loc[
        rows.mask_label.isin({key.mask_label for key in by_key}), ["mask", "mask_label"]
    ].drop_duplicates()
    return Cases(by_key, frozenset(masks.mask_label[is_repeat(masks, named)]))
