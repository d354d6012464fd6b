"""Cases and standings: each method's share of the best one's rate, and how it stands over all masks.

A case is one mask in one direction at one setting: all methods that ran it are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.report.findings import ranked
from longca.report.rates import rate_points
from longca.report.series import join

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
    worst: float
    """its lowest share"""
    where: str
    """the mask of that share, with the direction where there are two"""
    mean: float
    """geometric mean of its shares"""


def cases(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The points of all methods of that kind ("kernel" or "cp"), ranked case by case (`longca.report.findings.ranked`)."""
    return ranked(rate_points(table, kind, ["direction", "seqlen", "world"]), CASE)


def standings(found: pd.DataFrame) -> list[Standing]:
    """Those that ran the most cases first, then by the geometric mean of their shares, then by name."""
    import numpy as np

    both = found.direction.nunique() > 1
    result = []
    for method, rows in found.groupby("method", sort=True):
        worst = rows.loc[rows.share.idxmin()]
        first = int(((rows.place == 1) & (rows.num_methods > 1)).sum())
        where = join(worst.mask_label, worst.direction if both else "")
        result.append(Standing(str(method), len(rows), first, float(worst.share), where, float(np.exp(np.log(rows.share).mean()))))
    return sorted(result, key=lambda one: (-one.num_cases, -one.mean, one.method))


def num_cases(found: pd.DataFrame) -> int:
    """Number of cases that any method ran."""
    return len(found[CASE].drop_duplicates())


def num_open(found: pd.DataFrame) -> int:
    """Number of cases whose first two methods lie within the noise of each other."""
    return int(((found.place == 2) & found.tied).sum())
