"""Cases and standings: each method's share of the best one's rate, and how it stands over all masks.

A case is one mask in one direction at one setting: all methods that ran it are compared. Repeats of a mask
(`longca.report.series.is_repeat`) have cases, but do not count in standings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.report.findings import ranked
from longca.report.rates import rate_points
from longca.report.series import is_repeat, join, labelled, without_repeats
from longca.store.view import NOISY

if TYPE_CHECKING:
    import pandas as pd

CASE = ["mask_label", "direction", "setting", "world", "seqlen"]


@dataclass(frozen=True)
class Standing:
    """One method over several cases."""

    method: str
    num_cases: int
    num_first: int
    """of these where it is the fastest of two or more"""
    worst: float | None
    """its lowest share where another method ran, too; of noisy results only if all are. None if it was never compared"""
    where: str
    """the mask of that share, with the direction where there are two"""
    mean: float
    """geometric mean of its shares where another method ran, too; 0 if it was never compared"""


def cases(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The points of all methods of that kind ("kernel" or "cp"), ranked case by case (`longca.report.findings.ranked`).

    Adds:
        is_repeat: see `longca.report.series.is_repeat`.
    """
    named = labelled(table)
    found = ranked(rate_points(named, kind, ["direction", "seqlen", "world"]), CASE)
    return found.assign(is_repeat=is_repeat(found, named))


def standings(found: pd.DataFrame) -> list[Standing]:
    """Those that ran the most cases first, then by the geometric mean of their shares, then by name.

    A method that ran nothing but repeats has no case, so that it comes last.
    """
    import numpy as np

    both, chosen = found.direction.nunique() > 1, without_repeats(found)
    result = []
    for method in sorted(set(found.method)):
        rows = chosen[chosen.method == method]
        compared = rows[rows.num_methods > 1]
        if not len(compared):
            result.append(Standing(str(method), len(rows), 0, None, "", 0.0))
            continue
        steady = compared[compared.noise <= NOISY]  # a host that delays one record would else be told as a weakness of its method
        judged = steady if len(steady) else compared
        worst = judged.loc[judged.share.idxmin()]
        where = join(worst.mask_label, worst.direction if both else "")
        result.append(Standing(str(method), len(rows), int((compared.place == 1).sum()), float(worst.share), where,
                               float(np.exp(np.log(compared.share).mean()))))
    return sorted(result, key=lambda one: (-one.num_cases, -one.mean, one.method))


def num_cases(found: pd.DataFrame) -> int:
    """Number of cases that any method ran."""
    return len(found[CASE].drop_duplicates())


def num_open(found: pd.DataFrame) -> int:
    """Number of cases whose first two methods lie within the noise of each other."""
    return int(((found.place == 2) & found.tied).sum())
