"""The rows of the derived table that claims are about, with their measurements as the ranking has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.ranking.table import ABSENT, competes, counted, is_played, measurements, resolutions_of
from longca.store.table import is_ranked

if TYPE_CHECKING:
    import pandas as pd

STUDY_GPU = "H100"
ROLE, MEASURED, RESOLUTIONS = "role", "measurement", "resolutions"
"""what `prepared` adds: columns with "own", "played" (in a play-off) or "", and with the measurement, None where
it is not of its case's protocol (`longca.ranking.protocol`); and an attribute with the resolutions"""


def prepared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what `points` needs of the ranking, computed once for all questions to it."""
    import pandas as pd

    if ROLE in table:
        return table
    asked = (table.device_type == "cuda") & is_ranked(table) & (table.status != ABSENT)
    rows = table.loc[asked]
    roles = counted(rows).map({True: "own", False: ""})
    roles[is_played(rows)] = "played"
    ranked = competes(rows) | is_played(rows)
    measured = pd.Series(measurements(rows), index=rows.index, dtype=object).where(ranked, None)
    added = {ROLE: roles.reindex(table.index, fill_value=""), MEASURED: measured.reindex(table.index)}
    found = pd.concat([table, pd.DataFrame(added)], axis=1)
    found.attrs[RESOLUTIONS] = resolutions_of(rows)
    return found
