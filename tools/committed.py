"""Committed tables of records with the play-offs of their cells, as the README and the dispatch table need
them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import FIXED_ORDER
from longca.lab.ranking.table import is_played
from longca.lab.store.load import load_columns

if TYPE_CHECKING:
    import pandas as pd


def with_playoffs(files: Sequence[Path], columns: Sequence[str]) -> pd.DataFrame:
    """These columns of the rows of some files, and of the play-offs of their cells in other tables of the
    same folders, where the files have no play-off of these cells themselves: pages and `longca choose` know a
    study's own play-offs alone, and must name the same winner. Kernels in a fixed order have play-offs of
    their own: those come to tables with such kernels, and to no others.

    Args:
        columns: with `longca.lab.ranking.table.COLUMNS` among them.
    """
    own, _ = load_columns(files, columns)
    folders = dict.fromkeys(file.parent for file in files)
    others = [path for folder in folders for path in sorted(folder.glob("*.parquet")) if path not in files]
    if not others:
        return own
    import pandas as pd

    beside, _ = load_columns(others, columns)
    ordered = beside.method.str.endswith(FIXED_ORDER)
    is_ordered = beside.playoff.isin(set(beside.playoff[ordered]))
    beside = beside[is_ordered == own.method.str.endswith(FIXED_ORDER).any()]
    beside = beside[is_played(beside) & beside.cell_id.isin(own.cell_id) & beside.device.isin(own.device)]
    decided = own.cell_id[is_played(own)]
    beside = beside[~beside.playoff.isin(set(beside.playoff[beside.cell_id.isin(decided)]))]
    return pd.concat([own, beside], ignore_index=True) if len(beside) else own
