"""Labels for masks and settings, and points with their spread, shared by figures and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longca.core import by_numbers
from longca.lab.ranking.table import RATE, counted, is_beside, is_played, resolutions_of, with_measurements
from longca.lab.ranking.table import points as ranked_points
from longca.lab.report.look.labels import PAPER_COMPAT, is_of_paper, join, mask_names, params_of
from longca.lab.store.table import is_ranked, new_texts
from longca.lab.store.text import number, plural, rate_scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from longca.lab.ranking import MeasuredPoint, Resolutions

FAMILIES = ("no documents", "documents", "block-sparse")
# outcomes of attempted cells; unsupported and unavailable cells were not attempted
FAILURES = ("oom", "incorrect", "implausible", "error", "timeout")
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
# table attribute: the number of rows that the labels distinguish; parts of the table inherit it
LABELLED = "labelled"
BESIDE = "beside"  # table attribute: rows of play-offs and repeats of the same cells
RESOLUTIONS = "resolutions"  # attribute of a table and its parts: resolutions of all comparisons of rows
POINT = "point"  # the column of points for ranking rates
NEW = "new_choice"  # named even where all rows agree
CALL = {"heads": "{} heads", "head_dim": "D {}", "dtype": "{}", NEW: "{}"}
_NUMBERED = re.compile(r"\b([0-9a-f]{16})-\d+\b")
SETTING = {"device_choice": "{}", **CALL, "corpus_choice": "{}"}


@dataclass(frozen=True)
class Unit:
    """The displayed unit of rates; `factor` converts from TFLOP/s."""

    factor: float
    name: str

    def text(self, tflops: float) -> str:
        return f"{number(tflops * self.factor)} {self.name}"

    def span(self, low: float, high: float) -> str:
        return f"{number(low * self.factor)}–{number(high * self.factor)}"


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """The derived table with labels that distinguish its rows.

    Adds:
        heads: "64:8".
        mask_variant: the parameters in which the table's masks of that name differ, without the requested
            density; only switches that are on are named.
        mask_label: mask and variant, with the requested density if masks of that name differ in it.
        device_choice: the device, if the table has several.
        corpus_choice: the corpus, if masks of one name and length have several.
        window_choice: the window, if masks of that name have several.
        call_choice: `new_texts`, and those of heads, head dim and dtype in which the table's rows differ.
        setting: call_choice, and those of device and corpus in which the table's rows differ; "" if none.
        detail: all of these without the mask's name.
        measurement: as `longca.lab.ranking.table.measurements` has them.

    A labelled table is returned unchanged; a part of one gets new labels.

    Returns: The cells' own rows. Rows of play-offs and repeats, which serve ranking and noise estimates, are
        kept separately (`with_beside`).
    """
    import pandas as pd

    if table.attrs.get(LABELLED) == len(table):
        return table
    attrs = table.attrs
    beside = is_beside(table)
    resolutions = attrs.get(RESOLUTIONS) or resolutions_of(table)
    kept = attrs.get(BESIDE)
    own = table[~beside]
    more = (
        kept.rows[kept.rows.cell_id.isin(own.cell_id) & kept.rows.device.isin(own.device)]
        if kept
        else table[beside]
    )
    every = _with_labels(pd.concat([own, more], ignore_index=True) if len(more) else own)
    named = every.iloc[: len(own)].set_axis(own.index, axis=0)
    named.attrs = {
        **attrs,
        LABELLED: len(own),
        RESOLUTIONS: resolutions,
        BESIDE: _Beside(every.iloc[len(own) :]),
    }
    return named


@dataclass(frozen=True, eq=False)
class _Beside:
    """Immutable rows attached to a table, not copied with each selection of the table."""

    rows: pd.DataFrame

    def __deepcopy__(self, memo: object) -> _Beside:
        return self


def with_beside(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a labelled table together with its attached rows."""
    import pandas as pd

    kept = table.attrs.get(BESIDE)
    if kept is None or not len(kept.rows):
        return table
    whole = pd.concat([table, kept.rows], ignore_index=True)
    whole.attrs = table.attrs
    return whole


def _with_labels(table: pd.DataFrame) -> pd.DataFrame:
    table = with_measurements(table)
    table["heads"] = [
        f"{q}:{kv}" for q, kv in zip(table.num_q_heads.tolist(), table.num_kv_heads.tolist(), strict=True)
    ]
    keys = list(zip(table["mask"], table.mask_params, strict=True))
    names = mask_names(dict.fromkeys(keys))  # large studies have many cells but few masks
    table["mask_variant"], table["mask_label"] = (
        [names[key].variant for key in keys],
        [names[key].label for key in keys],
    )
    corpora = table[table.corpus != ""].groupby(["mask", "seqlen"]).corpus.nunique()
    table["device_choice"] = table.device if table.device.nunique() > 1 else ""
    table["corpus_choice"] = table.corpus if (corpora > 1).any() else ""
    table[NEW] = new_texts(table)
    windows = {key: params_of(key[1]).get("window", "") for key in names}
    of_name = {name: {windows[key] for key in names if key[0] == name} for name in set(table["mask"])}
    table["window_choice"] = [windows[key] if len(of_name[key[0]]) > 1 else "" for key in keys]
    table["call_choice"], table["setting"] = _differing(table, CALL), _differing(table, SETTING)
    table["detail"] = [
        join(names[key].detail, setting) for key, setting in zip(keys, table.setting, strict=True)
    ]
    return table


def _differing(table: pd.DataFrame, forms: Mapping[str, str]) -> list[str]:
    """For each row the values of the columns in which the table's rows differ, and the new tokens."""
    parts = [
        [form.format(value) if str(value) else "" for value in table[column].tolist()]
        for column, form in forms.items()
        if len({str(value) for value in table[column].unique()} - {""}) > (column != NEW)
    ]
    return [join(*row) for row in zip(*parts, strict=True)] if parts else [""] * len(table)


def mask_order(table: pd.DataFrame) -> list[str]:
    """Mask labels from the densest to the sparsest within each family; labels of one name are adjacent,
    sorted by requested density, and those of LongCA-bench's released code come after the others."""
    masks = (
        table.groupby(["mask_family", "mask", "mask_label"], sort=True)[["density", "mask_density_asked"]]
        .mean()
        .reset_index()
    )
    masks["density"] = masks.density.fillna(-1.0)
    masks["share"] = masks.mask_density_asked.fillna(masks.density)
    masks["family"] = [FAMILIES.index(name) for name in masks.mask_family]
    masks["of_name"] = masks.groupby("mask").density.transform("mean")
    masks["of_paper"] = [is_of_paper(label) for label in masks.mask_label]
    masks["numbers"] = masks.mask_label.map(by_numbers)  # so that 64 precedes 128
    return masks.sort_values(
        ["family", "of_name", "mask", "of_paper", "share", "numbers"],
        ascending=[True, False, True, True, False, True],
    ).mask_label.tolist()


def is_repeat(data: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """True for points of a mask in the definition of LongCA-bench's released code (parameter `paper_compat`)
    if the default definition has points, too.

    Only some methods are measured on such a mask; otherwise the remaining methods would be ranked last for
    cells that were never requested.

    Args:
        data: points with the columns mask and mask_label.
        table: `labelled` rows of these points.
    """
    named = table[["mask_label", "mask_params"]].drop_duplicates()
    of_paper = {
        row.mask_label for row in named.itertuples() if PAPER_COMPAT in str(row.mask_params).split(", ")
    }
    others = data.mask_label.isin(of_paper)
    return others & data["mask"].isin(set(data["mask"][~others]))


def without_repeats(data: pd.DataFrame) -> pd.DataFrame:
    """The points of a figure that its counts are of: all but those that `is_repeat` tells, by their label.

    Args:
        data: points with the columns mask and detail.
    """
    others = data.detail.map(is_of_paper).astype(bool)
    return data.loc[~(others & data["mask"].isin(set(data["mask"][~others])))]


def points(
    table: pd.DataFrame,
    by: list[str],
    value: str,
    low: str | None = None,
    high: str | None = None,
    *,
    unit: str,
) -> pd.DataFrame:
    """One row for each combination of `by`, which merges the seeds of a cell.

    Args:
        table: rows, optionally with those of play-offs, which affect only the ranking.
        value, low, high: columns of the number and its spread.
        unit: unit of these columns.

    Returns:
        by, unit, value (median over seeds), low and high (from the lowest first to the highest third quartile
        of any seed), noise (spread of the least steady cell over its value), num_cells, num_samples, status
        ("ok", or else the most frequent failure) and cell_ids. Only ok rows have numbers. Rates also have a
        `point` for ranking (`longca.lab.ranking.MeasuredPoint`; None without a number, or for several device
        models).
    """
    import pandas as pd

    is_rate = value == RATE and "method" in by
    columns = [
        *by,
        "unit",
        "value",
        "low",
        "high",
        "noise",
        "num_cells",
        "num_samples",
        "status",
        "cell_ids",
        *([POINT] if is_rate else []),
    ]
    every = table
    table = table[~is_beside(table)]
    if not len(table):
        return pd.DataFrame(columns=columns)
    # vectorised, since a page has tens of thousands of groups
    group = table.groupby(by, sort=False, dropna=False).ngroup().to_numpy()  # numbered in order of appearance
    first = pd.Series(group).drop_duplicates().index
    frame = pd.DataFrame({name: table[name].iloc[first].tolist() for name in by}).assign(unit=unit)
    cells = pd.DataFrame(
        {
            "group": group,
            "status": table.status.to_numpy(),
            "num_samples": table.num_samples.fillna(0).to_numpy(int),
        }
    )
    for name, column in (("value", value), ("low", low), ("high", high)):
        cells[name] = table[column or value].to_numpy(float, na_value=float("nan"))
    cells["noise"] = (cells.high - cells.low) / cells.value
    is_ok = cells.status == "ok"
    numbers = (
        cells[is_ok]
        .groupby("group")
        .agg(
            value=("value", "median"),
            low=("low", "min"),
            high=("high", "max"),
            noise=("noise", "max"),
            num_cells=("status", "size"),
            num_samples=("num_samples", "sum"),
        )
    )
    frame = (
        frame.join(numbers)
        .fillna({"num_cells": 0, "num_samples": 0})
        .astype({"num_cells": int, "num_samples": int})
    )
    failures = {key: statuses.mode().iloc[0] for key, statuses in cells[~is_ok].groupby("group").status}
    frame["status"] = ["ok" if num_cells else failures[key] for key, num_cells in enumerate(frame.num_cells)]
    ids: list[list[str]] = [[] for _ in first]
    for key, cell_id in zip(group, table.cell_id, strict=True):
        ids[key].append(cell_id)
    frame = frame.assign(cell_ids=list(map(" ".join, ids)))
    if is_rate:
        keys = [name for name in by if name != "method"]
        known = _measured_points(every, keys, table.attrs.get(RESOLUTIONS))
        frame[POINT] = pd.Series(
            [
                known.get(key)
                for key in zip(*(frame[name].tolist() for name in (*keys, "method")), strict=True)
            ],
            dtype=object,
        )
    return frame.loc[:, columns]


def _measured_points(
    rows: pd.DataFrame, keys: list[str], resolutions: Resolutions | None
) -> dict[tuple[Any, ...], MeasuredPoint | None]:
    """The points by the values of `keys` and their method; None for points of several device models, which
    are never ranked."""
    merged: dict[tuple[Any, ...], MeasuredPoint | None] = {}
    for (*key, _, method), point in ranked_points(rows, [*keys, "device"], resolutions).items():
        merged[*key, method] = None if (*key, method) in merged else point
    return merged


def attention(
    table: pd.DataFrame, kind: str, direction: str | None = None, *, every: bool = False
) -> pd.DataFrame:
    """Rows of attempted attention that may be ranked: no controls, no unsupported or unavailable cells, no
    rows "as released".

    Args:
        every: include rows of play-offs and repeats; otherwise each cell has one row.
    """
    table = with_beside(table) if every else table
    chosen = table[(table.kind == kind) & is_ranked(table) & table.status.isin(("ok", *FAILURES))]
    chosen = chosen if direction is None else chosen[chosen.direction == direction]
    return chosen if every else chosen[counted(chosen)]


def rankable(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `attention` with `every` that are used for ranking: one for each cell, and those of
    play-offs."""
    return rows[counted(rows) | is_played(rows)]


def rate_unit(largest_tflops: float) -> Unit:
    """The unit in which such rates have few digits."""
    return Unit(*rate_scale(largest_tflops))


def for_file(data: pd.DataFrame) -> pd.DataFrame:
    """The columns of a figure's data in its file."""
    kept = data.drop(columns=POINT, errors="ignore")
    names = [name for name in kept if str(name).startswith("cell_id")]
    return kept.assign(**{name: kept[name].map(plain_ids, na_action="ignore") for name in names})


def plain_ids(cell_ids: str) -> str:
    """Cell ids, divided by blanks, without the numbers of `longca.lab.report.rows.with_anchors`."""
    return _NUMBERED.sub(r"\1", cell_ids)


def sampled(data: pd.DataFrame) -> str:
    """The amount of data in a figure: "231 cells, 1,155 samples"."""
    return f"{plural(int(data.num_cells.sum()), 'cell')}, {plural(int(data.num_samples.sum()), 'sample')}"


def grouped(data: pd.DataFrame, by: list[str], *, sort: bool = True) -> Iterable[tuple[Any, pd.DataFrame]]:
    """The groups of rows that are alike in `by`, each after its values of these columns."""
    return data.groupby(by, sort=sort)
