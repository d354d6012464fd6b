"""Predictions as columns of the derived table, for the figures of the section "Predicted beside measured"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longca.lab.ranking import MeasuredPoint, compare, competing
from longca.lab.ranking.table import measurements
from longca.lab.report.series import RESOLUTIONS
from longca.lab.store import RecordTable

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.studies import Record

COLUMNS = ("predicted_ms", "predicted_low_ms", "predicted_high_ms")
# in which strategies compare
SETTING = ["device", "setting", "world", "seqlen", "mask_label", "kernel", "direction", "seed"]
# what a choice is made and told by
CHOICE = ("strategy", "method", "cell_id", "time_ms_median", "predicted_ms", "measured")
FEWEST = 3  # strategies of an evaluated setting
MOST = 1_000  # cells that a page predicts, 5 ms each
# fields that define one question to strategies
TOGETHER = ["device", "world", "seqlen", "mask", "mask_params", "corpus", "kernel", "direction", "seed"]


def with_predictions(table: pd.DataFrame, records: RecordTable | Sequence[Record]) -> pd.DataFrame:
    """The derived table of these records with `COLUMNS`, which are NA without a prediction, and beyond the
    first `MOST`."""
    import pandas as pd

    made: dict[tuple[str, str], Any] = {}
    rows = RecordTable.of(records)
    if any(
        kind == "cp" and environment is not None and environment.nodes[0].gpu
        for environment, (kind,), _ in rows.environments("kind")
    ):
        from longca.lab.advice import predictions  # a large import that pages of one device do not need

        made = predictions(rows.records(first_rows(table)))
    found = [made.get(key) for key in zip(table.cell_id, table.run_id, strict=True)]
    values = {
        name: [
            getattr(prediction, name.removeprefix("predicted_")) if prediction is not None else None
            for prediction in found
        ]
        for name in COLUMNS
    }
    return table.assign(**{name: pd.array(column, dtype="Float64") for name, column in values.items()})


def first_rows(table: pd.DataFrame, most: int = MOST) -> np.ndarray:
    """The rows of measured context parallelism up to the limit, with all strategies of a setting or none."""
    rows = np.flatnonzero((table.kind == "cp") & (table.status == "ok"))
    settings = table.iloc[rows].groupby(TOGETHER, sort=False, dropna=False).ngroup().to_numpy()
    return rows[np.cumsum(np.bincount(settings))[settings] <= most]


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a prediction and a time, with their error: measured over predicted, minus 1."""
    if "predicted_ms" not in table:
        return table.iloc[:0].assign(
            predicted_ms=None, predicted_low_ms=None, predicted_high_ms=None, error=None, inside=None
        )
    known = table[(table.status == "ok") & table.predicted_ms.notna() & table.time_ms_median.notna()]
    times = known.time_ms_median.astype(float)
    inside = times.between(known.predicted_low_ms.astype(float), known.predicted_high_ms.astype(float))
    return known.assign(error=times / known.predicted_ms.astype(float) - 1, inside=inside)


def choices(named: pd.DataFrame) -> pd.DataFrame:
    """The choices of rules in each setting with three or more predicted and measured strategies.

    Args:
        named: `judged` rows with the labels of `longca.lab.report.series.labelled`.

    Returns: One row for each rule and setting: rule, SETTING, method, best (the fastest method), regret (its
        time over that of the fastest, minus 1), tied (it is the fastest, or ties with it), cell_id.
    """
    import pandas as pd

    rows = []
    chosen = named[named.strategy_params == ""]
    known = named.attrs.get(RESOLUTIONS)
    chosen = chosen.assign(measured=measurements(chosen))
    # rows of few columns are taken much faster
    chosen = chosen.loc[chosen.measured.notna(), [*SETTING, *CHOICE]]
    for key, cells in chosen.groupby(SETTING, sort=False):
        ran = cells.drop_duplicates("strategy").set_index("strategy")
        ranked = competing(
            [MeasuredPoint(str(name), (measured,)) for name, measured in ran.measured.items()]
        ).points
        if len(ranked) < FEWEST:
            continue
        ran = ran.loc[[point.method for point in ranked]]
        times = ran.time_ms_median.astype(float)
        best = str(times.idxmin())
        rules = {
            "predicted": str(ran.predicted_ms.astype(float).idxmin()),
            **{f"always {name}": str(name) for name in ran.index},
        }
        for rule, taken in rules.items():
            row = ran.loc[taken]
            first, second = (MeasuredPoint(name, (ran.loc[name].measured,)) for name in (best, taken))
            rows.append(
                {
                    "rule": rule,
                    **dict(zip(SETTING, key, strict=True)),
                    "method": row.method,
                    "best": ran.loc[best].method,
                    "regret": float(times[taken] / times[best] - 1),
                    "tied": taken == best or compare(first, second, known).is_tie,
                    "status": "ok",
                    "cell_id": row.cell_id,
                }
            )
    return pd.DataFrame(
        rows, columns=["rule", *SETTING, "method", "best", "regret", "tied", "status", "cell_id"]
    )
