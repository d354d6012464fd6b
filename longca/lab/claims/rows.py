"""The rows of the derived table that claims are about, with their measurements as the ranking has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import AS_RELEASED
from longca.lab.ranking import ANY_TWO
from longca.lab.ranking.table import ABSENT, competes, counted, is_played, measurements, resolutions_of
from longca.lab.store.table import is_ranked, is_square

if TYPE_CHECKING:
    import pandas as pd

STUDY_GPU = "H100"
STUDY_DEVICE = "NVIDIA H100 80GB HBM3"
"""the study's GPU: its model, and the exact one"""
ROLE = "role"
MEASURED = "measurement"
RESOLUTIONS = "resolutions"
"""what `prepared` adds: columns with the role of a row and with its measurement, None where it is
not of its case's protocol (`longca.lab.ranking.protocol`); and an attribute with the resolutions"""
OWN = "own"
PLAYED = "played"
RELEASED = "released"
NO_ROLE = ""
"""the roles: the row of a cell, of a play-off, of a kernel as released (never ranked), of nothing asked"""


def prepared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what `points` needs of the ranking, computed once for all questions to it. Queries at
    the end of a longer context have no role: claims are about square masks."""
    import pandas as pd

    if ROLE in table:
        return table
    tried = (table.device_type == "cuda") & (table.status != ABSENT) & is_square(table)
    rows = table.loc[tried & is_ranked(table)]
    released = table.loc[tried & table.kernel.astype(str).str.startswith(AS_RELEASED)]
    roles = counted(rows, ANY_TWO).map({True: OWN, False: NO_ROLE})
    roles[is_played(rows)] = PLAYED
    all_roles = pd.Series(NO_ROLE, index=table.index).mask(table.index.isin(rows.index), roles)
    all_roles[released.index] = counted(released, ANY_TWO).map({True: RELEASED, False: NO_ROLE})
    asked = table.loc[all_roles != NO_ROLE]
    ranked = competes(asked, ANY_TWO) | is_played(asked)
    measured = pd.Series(measurements(asked), index=asked.index, dtype=object).where(ranked, None)
    added = pd.DataFrame({ROLE: all_roles, MEASURED: measured.reindex(table.index)})
    found = pd.concat([table, added], axis=1)
    found.attrs[RESOLUTIONS] = resolutions_of(rows)
    return found
