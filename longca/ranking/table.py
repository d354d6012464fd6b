"""The ranking of the derived table: its rows as measurements, points and standings. The only module here that
needs pandas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longca.ranking.measurement import ABSENT, Measurement
from longca.ranking.order import Standing, standing
from longca.ranking.point import MeasuredPoint
from longca.ranking.relation import RepeatPair
from longca.ranking.repeats import repeat_pairs
from longca.ranking.resolution import Resolutions
from longca.store.columns import COLUMNS as TABLE

if TYPE_CHECKING:
    import pandas as pd

RATE = "tflops_per_device"
CASE = (
    "device",
    "kind",
    "world",
    "mask",
    "mask_params",
    "corpus",
    "seqlen",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
    "input_values",
    "sustained",
)
"""what cells have in common that are ranked together; seeds of a mask are one case"""
_FACTS = (
    "device",
    "hostname",
    "gpus",
    "run_id",
    "playoff",
    "playoff_rounds",
    "seed",
    "cell_id",
    "method_version",
    "noise",
    "disturbed",
    "duty",
)
_READ = {
    *CASE,
    *_FACTS,
    "study",
    "method",
    "status",
    "device_type",
    "repeat",
    "started_at",
    "samples_ms",
    RATE,
}
COLUMNS = tuple(column.name for column in TABLE if column.name in _READ)
"""the columns of the derived table that ranking reads, beside those of `longca.store.table.is_ranked`; what a
table lacks is not known"""


def counted(table: pd.DataFrame) -> pd.Series:
    """True for the rows that stand for their cells: neither beside them, nor repeats of a cell that has
    another row.

    Of several studies with records of one method in one case, that counts which measured most methods
    there; of several records of a cell the newest, if possible one that nothing disturbed.
    """
    keep = ~is_beside(table)
    names = [
        name
        for name in (*CASE, "study", "method", "cell_id", "status", "started_at", "disturbed")
        if name in table
    ]
    rows = table.loc[keep, names]
    if not rows.duplicated([name for name in ("cell_id", "method", "device") if name in names]).any():
        return keep
    case = [name for name in CASE if name in names]
    rows["case"] = rows.groupby(case, sort=False, dropna=False).ngroup()
    rows["ran"] = rows.method.where(rows.status == "ok")
    rows["methods"] = rows.groupby(["case", "study"], dropna=False).ran.transform("nunique")
    rows["disturbed"] = rows.disturbed.fillna(False).astype(bool) if "disturbed" in names else False
    order = [name for name in ("methods", "study", "started_at") if name in rows]
    rows = rows.sort_values(order, ascending=[name == "study" for name in order], kind="stable")
    rows = rows[rows.study == rows.groupby(["case", "method"]).study.transform("first")]
    chosen = rows.sort_values("disturbed", kind="stable").drop_duplicates(["case", "method", "cell_id"])
    return keep & keep.index.isin(chosen.index)


def is_played(table: pd.DataFrame) -> pd.Series:
    """True for the rows of play-offs, which rank, and stand for no cell."""
    return _has(table, "playoff")


def is_beside(table: pd.DataFrame) -> pd.Series:
    """True for the rows of play-offs and for second measurements: their cells have rows of their own."""
    return is_played(table) | _has(table, "repeat")


def _has(table: pd.DataFrame, name: str) -> pd.Series:
    import pandas as pd

    if name not in table:
        return pd.Series(False, index=table.index)
    return table[name].map(bool, na_action="ignore").eq(True).fillna(False).astype(bool)


def measurements(table: pd.DataFrame, rate: str = RATE) -> list[Measurement | None]:
    """Each row as a measurement; None for rows without a rate above 0."""
    names = [name for name in (*_FACTS, "status", "samples_ms", "device_type", rate) if name in table]
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return [_measurement(dict(zip(names, values, strict=True)), rate) for values in rows]


def resolutions_of(table: pd.DataFrame) -> Resolutions:
    """The resolutions by which the rows of a table are told apart: those of the package, with the table's own
    repeats."""
    return Resolutions.known().widened(pairs_of(table))


def pairs_of(table: pd.DataFrame, *, any_version: bool = False) -> list[RepeatPair]:
    """The repeats among the rows of attention: see `repeat_pairs`."""
    cells = table.cell_id.duplicated(keep=False) | is_played(table)
    if "is_control" in table:
        cells &= ~table.is_control.astype(bool)
    chosen = table[cells & (table.status == "ok")]
    return repeat_pairs((record for record in measurements(chosen) if record), any_version=any_version)


def points(
    table: pd.DataFrame, by: Sequence[str], resolutions: Resolutions | None = None
) -> dict[tuple[Any, ...], MeasuredPoint]:
    """The points of all combinations of `by` and method that have a rate, by the values of `by`, then the
    method.

    Args:
        by: columns that tell cases apart; with the device's model among them, or in one that has it.
        resolutions: `resolutions_of` the table if not given.
    """
    known = resolutions_of(table) if resolutions is None else resolutions
    own = counted(table).tolist()
    groups: dict[tuple[Any, ...], tuple[list[Measurement], list[Measurement]]] = defaultdict(lambda: ([], []))
    keys = zip(*(table[name].tolist() for name in (*by, "method")), strict=True)
    for key, record, is_own in zip(keys, measurements(table), own, strict=True):
        if record is not None and (is_own or record.playoff):
            groups[key][bool(record.playoff)].append(record)
    return {
        key: MeasuredPoint(str(key[-1]), tuple(cells), tuple(_newest(played)), known)
        for key, (cells, played) in groups.items()
    }


def standings(
    table: pd.DataFrame,
    by: Sequence[str] = CASE,
    *,
    methods: Collection[str] | None = None,
    resolutions: Resolutions | None = None,
) -> dict[tuple[Any, ...], Standing]:
    """The standing of each case of a table in which any method has a rate, by the values of `by`, in the
    order of the rows.

    Args:
        table: rows that may be ranked (`longca.store.table.is_ranked`), of any status.
        by: columns that tell cases apart; see `points`.
        methods: those that can be asked; those of the rows of each kind and device if not given.
        resolutions: `resolutions_of` the table if not given.
    """
    cases: dict[tuple[Any, ...], list[MeasuredPoint]] = defaultdict(list)
    for key, point in points(table, by, resolutions).items():
        cases[key[:-1]].append(point)
    statuses: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    fields: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    asked: dict[tuple[Any, ...], dict[str, None]] = defaultdict(dict)
    facts = [
        table[name].tolist() if name in table else [""] * len(table)
        for name in ("method", "status", "kind", "device")
    ]
    keys = zip(*(table[name].tolist() for name in by), strict=True)
    for key, method, status, *of_field in zip(keys, *facts, strict=True):
        fields.setdefault(key, tuple(of_field))
        asked[tuple(of_field)][method] = None
        if status != "ok":
            statuses[key].setdefault(method, status)
    order = {key: index for index, key in enumerate(fields)}
    ranked = {}
    for key in sorted(cases, key=order.__getitem__):
        ran = {point.method for point in cases[key]}
        could_not = {
            method: status
            for method, status in statuses[key].items()
            if method not in ran and status != ABSENT
        }
        others = sorted(set(methods if methods is not None else asked[fields[key]]) - ran - set(could_not))
        ranked[key] = standing(cases[key], could_not, others, resolutions)
    return ranked


def _measurement(row: dict[str, Any], rate: str) -> Measurement | None:
    value = _number(row[rate])
    if row.get("status", "ok") != "ok" or not value > 0:
        return None
    seed, noise, rounds = _number(row.get("seed")), _number(row.get("noise")), row.get("playoff_rounds")
    facts: dict[str, Any] = {
        "device": row.get("device") or "",
        "unit": row.get("gpus") or (row.get("hostname") if row.get("device_type") == "cpu" else "") or "",
        "run": row.get("run_id") or "",
        "playoff": row.get("playoff") or "",
        "rounds": tuple(rounds) if hasattr(rounds, "__len__") else (),
        "seed": int(seed) if seed == seed else 0,
        "cell_id": row.get("cell_id") or "",
        "version": row.get("method_version") or "",
        "noise": noise if noise == noise else 0.0,
        "disturbed": row.get("disturbed") is True,
        "rests": _number(row.get("duty")) > 0,
    }
    times = tuple(row["samples_ms"]) if hasattr(row.get("samples_ms"), "__len__") else ()
    if not times:
        return Measurement(value, value, value, **facts)
    timed = Measurement.timed(times)
    scale = value / timed.rate
    return Measurement(value, scale * timed.low, scale * timed.high, times_ms=times, **facts)


def _number(value: Any) -> float:
    """NaN for what is not known."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _newest(played: Iterable[Measurement]) -> list[Measurement]:
    """One for each seed; rows come in the order of their start."""
    return list({record.seed: record for record in played}.values())
