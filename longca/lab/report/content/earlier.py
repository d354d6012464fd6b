"""Records of earlier kernels of this project, and the words that say so wherever these are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from longca.lab.store.text import plural
from longca.predict import ran_earlier

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("cell_id", "kernel", "method", "git_sha", "status")
"""the columns of the derived table that it reads"""
ELSEWHERE = "docs/results/h200/band.md has numbers of the present ones, on one GPU"
MOST_NAMED = 4  # methods in a note


def is_earlier(table: pd.DataFrame) -> pd.Series:
    """True for rows of earlier kernels of `band`."""
    import pandas as pd

    return pd.Series(
        [ran_earlier(str(kernel), str(sha)) for kernel, sha in zip(table.kernel, table.git_sha, strict=True)],
        index=table.index,
        dtype=bool,
    )


def earlier_text(methods: Iterable[str]) -> str:
    """The note on methods whose records are of earlier kernels: "band: measured with earlier kernels; …". ""
    for none."""
    named = _named(methods)
    return f"{named}: measured with earlier kernels; {ELSEWHERE}" if named else ""


def earlier_note(table: pd.DataFrame) -> str:
    """The same of a whole page, with the number of cells; "" where all records are of the present kernels."""
    timed = table.loc[table.status == "ok"]
    rows = timed.loc[is_earlier(timed)]
    if not len(rows):
        return ""
    total = plural(timed.cell_id.nunique(), "cell")
    named = _named(set(rows.method))
    return f"{rows.cell_id.nunique():,} of {total} ran earlier kernels ({named}); {ELSEWHERE}"


def _named(methods: Iterable[str]) -> str:
    names = sorted(methods)
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + rest
