"""The ranking of the derived table: its rows as measurements, points and standings. The only module here that
needs pandas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longca.lab.ranking.facts import COLUMNS as OF_FACTS
from longca.lab.ranking.facts import facts_of, number_of
from longca.lab.ranking.measurement import ABSENT, Measurement
from longca.lab.ranking.order import Standing, standing
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.ranking.protocol import HALF, is_by_rests
from longca.lab.ranking.relation import RepeatPair
from longca.lab.ranking.repeats import repeat_pairs
from longca.lab.ranking.resolution import Resolutions
from longca.lab.store.columns import COLUMNS as TABLE

if TYPE_CHECKING:
    import pandas as pd

RATE = "tflops_per_device"
MEASURED = "measurement"  # the column of `with_measurements`
CASE = (
    "device",
    "kind",
    "world",
    "mask",
    "mask_params",
    "corpus",
    "seqlen",
    "new_tokens",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
    "input_values",
    "sustained",
)
"""what cells have in common that are ranked together; seeds of a mask are one case"""
_READ = {*CASE, *OF_FACTS, "study", "method", "status", "repeat", "started_at", "samples_ms", RATE}
COLUMNS = tuple(column.name for column in TABLE if column.name in _READ)
"""the columns of the derived table that ranking reads, beside those of `longca.lab.store.table.is_ranked`;
what a table lacks is not known"""


def counted(table: pd.DataFrame, share: float = HALF) -> pd.Series:
    """True for the rows that stand for their cells: neither beside them, nor repeats of a cell that has
    another row.

    If several studies have records of one method in one case, the study that measured it by the case's
    protocol (`by_rests`) counts, then the study that measured most methods of the case by it. If a cell has
    several records, the record of that protocol counts, then the newest one, if possible one that nothing
    disturbed.

    Args:
        share: as of `by_rests`.
    """
    keep = ~is_beside(table)
    names = [
        name
        for name in (*CASE, "study", "method", "cell_id", "status", "started_at", "disturbed", "duty")
        if name in table
    ]
    rows = table.loc[keep, names]
    if not rows.duplicated([name for name in ("cell_id", "method", "device") if name in names]).any():
        return keep
    case = [name for name in CASE if name in names]
    rows["case"] = rows.groupby(case, sort=False, dropna=False).ngroup()
    rows["fits"] = competes(rows, share)
    rows["ran"] = rows.method.where((rows.status == "ok") & rows.fits)
    rows["methods"] = rows.groupby(["case", "study"], dropna=False).ran.transform("nunique")
    rows["of_protocol"] = rows.groupby(["case", "study", "method"], dropna=False).fits.transform("any")
    rows["disturbed"] = rows.disturbed.fillna(False).astype(bool) if "disturbed" in names else False
    order = [name for name in ("of_protocol", "methods", "study", "started_at") if name in rows]
    rows = rows.sort_values(order, ascending=[name == "study" for name in order], kind="stable")
    rows = rows[rows.study == rows.groupby(["case", "method"]).study.transform("first")]
    rows = rows.sort_values("disturbed", kind="stable").sort_values("fits", ascending=False, kind="stable")
    chosen = rows.drop_duplicates(["case", "method", "cell_id"])
    return keep & keep.index.isin(chosen.index)


def has_rests(table: pd.DataFrame) -> pd.Series:
    """True for rows of calls with a rest of the GPU after each."""
    import pandas as pd

    if "duty" not in table:
        return pd.Series(False, index=table.index)
    return table.duty.astype("Float64").gt(0).fillna(False).astype(bool)


def by_rests(table: pd.DataFrame, share: float = HALF) -> pd.Series:
    """True for the rows of cases that are ranked by measurements with rests: see
    `longca.lab.ranking.protocol`.
    Rows of play-offs and repeats do not decide that.

    Args:
        share: as of `longca.lab.ranking.protocol.is_by_rests`.
    """
    import pandas as pd

    rests = has_rests(table)
    if not rests.any():
        return rests
    names = [name for name in CASE if name in table]
    case = table.groupby(names, sort=False, dropna=False).ngroup()
    methods: dict[int, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    is_timed = (table.status == "ok") & ~is_beside(table)
    for number, method, rested in zip(case[is_timed], table.method[is_timed], rests[is_timed], strict=True):
        methods[number][rested].add(method)
    chosen = {
        number for number, (unrested, rested) in methods.items() if is_by_rests(rested, unrested, share)
    }
    return pd.Series(case.isin(chosen).to_numpy(bool), index=table.index)


def competes(table: pd.DataFrame, share: float = HALF) -> pd.Series:
    """True for the rows of cells that have no number, or one by the protocol of their case. The others are
    never ranked against these. It does not hold for rows of play-offs, which have a protocol of their
    own."""
    return (table.status != "ok") | (has_rests(table) == by_rests(table, share))


def is_played(table: pd.DataFrame) -> pd.Series:
    """True for the rows of play-offs, which rank, and stand for no cell. A twin, the second name of one
    kernel in a play-off, is a repeat."""
    return _has(table, "playoff") & ~_has(table, "repeat")


def is_beside(table: pd.DataFrame) -> pd.Series:
    """True for the rows of play-offs and for second measurements: their cells have rows of their own."""
    return _has(table, "playoff") | _has(table, "repeat")


def _has(table: pd.DataFrame, name: str) -> pd.Series:
    import pandas as pd

    if name not in table:
        return pd.Series(False, index=table.index)
    return table[name].map(bool, na_action="ignore").eq(True).fillna(False).astype(bool)


def with_measurements(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its `measurements`, which rankings of its parts then need not make again."""
    import pandas as pd

    return table.assign(**{MEASURED: pd.Series(measurements(table), index=table.index, dtype=object)})


def measurements(table: pd.DataFrame, rate: str = RATE) -> list[Measurement | None]:
    """Each row as a measurement; None for rows without a rate above 0."""
    if rate == RATE and MEASURED in table:
        return table[MEASURED].tolist()
    names = [name for name in (*OF_FACTS, "status", "samples_ms", rate) if name in table]
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return [_measurement(dict(zip(names, values, strict=True)), rate) for values in rows]


def resolutions_of(table: pd.DataFrame) -> Resolutions:
    """The resolutions by which the rows of a table are told apart: those of the package, with the table's own
    repeats."""
    return Resolutions.known().widened(pairs_of(table))


def pairs_of(table: pd.DataFrame, *, any_version: bool = False) -> list[RepeatPair]:
    """The repeats among the rows of attention: see `repeat_pairs`."""
    cells = table.cell_id.duplicated(keep=False) | _has(table, "playoff")
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
    played = is_played(table).tolist()
    groups: dict[tuple[Any, ...], tuple[list[Measurement], list[Measurement]]] = defaultdict(lambda: ([], []))
    keys = zip(*(table[name].tolist() for name in (*by, "method")), strict=True)
    for key, record, is_own, is_player in zip(keys, measurements(table), own, played, strict=True):
        if record is not None and (is_own or is_player):
            groups[key][is_player].append(record)
    return {
        key: MeasuredPoint(str(key[-1]), tuple(cells), tuple(_newest(players)), known)
        for key, (cells, players) in groups.items()
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
        table: rows that may be ranked (`longca.lab.store.table.is_ranked`), of any status.
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
    value = number_of(row[rate])
    if row.get("status", "ok") != "ok" or not value > 0:
        return None
    times = tuple(row["samples_ms"]) if hasattr(row.get("samples_ms"), "__len__") else ()
    return Measurement.at_rate(value, times, **facts_of(row))


def _newest(played: Iterable[Measurement]) -> list[Measurement]:
    """One for each seed and protocol; rows come in the order of their start."""
    return list({(record.seed, record.rests): record for record in played}.values())
