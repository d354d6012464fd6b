"""The words and numbers of records as a page shows them: in its table, in the details of one record, and at the
points of figures. The scripts only lay them out.

A template such as "{q1}–{q3} ms[ of {all}]" is filled with the texts of a record. A part in brackets is left out
if one of its texts is empty; the whole template, if one outside of brackets is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from longca.core.units import format_length
from longca.report.matrix import WORST_FIRST
from longca.report.series import DIRECTIONS
from longca.store.text import NONE, format_bytes, is_missing, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from longca.report.series import Unit

_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")
ARROWS = {"rising": " ↗", "falling": " ↘"}
DRIFTS = {
    "rising": "the samples get slower",
    "falling": "the samples get faster",
    "none": "none",
    "unknown": "unknown: fewer than ten samples",
}
STEADY = {True: ", steady", False: ", not steady yet"}
SAME = ["study", "method", "mask", "seqlen", "world", "direction", "seed"]  # what the command of a record names
COMMAND = (
    "longca run {study} -k {run_kernel} -c {run_strategy} -m {mask} -s {seqlen}[ -w {ranks}] -d {direction} "
    "--seed {seed} --force"
)
COUNTED = "{chosen} of {here} records[ here, {all} in all]. Open a cell for its samples, clocks, machine, code and command."
SEARCHED = (  # the texts that the table's search looks into
    "anchor", "study", "kind", "method", "mask", "mask_label", "heads", "dtype", "direction", "device", "status",
    "reason", "notes", "log", "mask_params", "corpus", "drawn", "mask_digest", "error_tensor", "memory_source",
    "costs", "clock_event_reasons", "hostname", "torch", "git_sha", "method_version", "run_id", "started_at",
)  # fmt: skip


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of records."""

    title: str
    text: str
    """template"""
    kind: str = ""
    """"cell", "method", "mask" or "status" for those that are more than a text"""
    order: str = ""
    """the numbers by which it is sorted; "" for its text"""
    number: bool = False
    high: bool = False
    """the first click on its head sorts high values to the top"""
    timed: bool = False
    """only records with status ok have it; the others have their reason in its place"""
    optional: str = ""
    """left out if the records have only one of these values"""


TABLE = (
    TableColumn("Cell", "{anchor}", "cell"),
    TableColumn("Method", "{method}", "method"),
    TableColumn("Ranks", "{world}", number=True, optional="world"),
    TableColumn("Mask", "{mask_label}", "mask"),
    TableColumn("Length", "{seqlen}", order="seqlen_order", number=True),
    TableColumn("Heads", "{heads}", optional="heads"),
    TableColumn("D", "{head_dim}", number=True, optional="head_dim"),
    TableColumn("Type", "{dtype}", optional="dtype"),
    TableColumn("Device", "{device}", optional="device"),
    TableColumn("Seed", "{seed}", number=True, optional="seed"),
    TableColumn("Dir.", "{direction}"),
    TableColumn("Status", "{status}", "status", order="status_order"),
    TableColumn("RATE", "{rate}", order="rate_order", number=True, high=True, timed=True),
    TableColumn("Median ms", "{ms}", order="ms_order", number=True, timed=True),
    TableColumn("% ceiling", "{ceiling}", order="ceiling_order", number=True, high=True, timed=True, optional="ceiling"),
    TableColumn("IQR", "{iqr}[{arrow}]", order="iqr_order", number=True, timed=True),
    TableColumn("n", "{n}", number=True, timed=True),
    TableColumn("Memory", "{memory}", order="memory_order", number=True, timed=True),
    TableColumn("Error/budget", "{ratio}", order="ratio_order", number=True, high=True),
)
DETAILS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Cell", (
        ("id", "{cell_id}"), ("mask", "{mask_label}"), ("parameters", "{mask_params}"), ("drawn", "{drawn}"),
        ("corpus", "{corpus}"), ("heads", "{heads}, D {head_dim}, {dtype}"), ("density", "{density}"),
        ("FLOP", "{flops}"), ("nominal FLOP", "{nominal_flops}"), ("mask digest", "{mask_digest}"),
    )),
    ("Time", (
        ("median", "{ms} ms"), ("quartiles", "{q1}–{q3} ms"), ("per device", "{rate} UNIT[ ({low}–{high})]"),
        ("of the ceiling", "{ceiling_percent} % of a matrix product's {ceiling_rate} UNIT"),
        ("of the maker's peak", "{peak_percent} %"), ("by nominal FLOP", "{nominal_rate} UNIT"),
        ("copied", "{gb_per_s} GB/s"), ("made to last", "{nominal_ms} ms"), ("on the host", "{enqueue_ms} ms a call"),
        ("mean over ranks", "{mean_ranks} ms"), ("95 % interval", "{ms_low}–{ms_high} ms, ±{precision} %"),
        ("drift", "{drift_words}[, by {drift_percent} %]"), ("cycles", "{mega_cycles} million"),
        ("rests", "busy for at most {duty} % of the time"),
        ("samples", "{n}[ after {warm_ups}[ in {warm_seconds} s[{steady}]], {timer}, ended by {stopped}]"),
    )),
    ("Result", (
        ("status", "{status}"), ("reason", "{reason}"), ("notes", "{notes}"),
        ("compared with", "{error_reference}, {error_scope}"),
        ("worst tensor", "{error_tensor}: {error} of {error_budget} allowed"),
    )),
    ("Memory and costs", (
        ("peak of a call", "{memory}"), ("absolute peak", "{absolute_memory}"), ("counted", "{memory_source}"),
        ("costs", "{costs}"),
    )),
    ("Ranks", (
        ("slowest rank", "rank {slowest_rank}, {straggler} % above the median rank"),
        ("of the kernel alone", "{single} % of {single_rate} UNIT"),
        ("moved by a rank", "{moved}[; by the formula {formula}]"), ("above its shards", "{above_shards}"),
        ("permuting", "{permute_ms} ms"), ("machines", "{machines}"),
    )),
    ("State of the GPU", (
        ("SM clock", "{sm_clock} MHz"), ("held back by", "{clock_event_reasons}"), ("power", "{power} W"),
        ("temperature", "{temperature} °C"),
    )),
    ("Where and when", (
        ("device", "{device}"), ("host", "{hostname}"), ("torch", "{torch}"), ("CUDA", "{cuda}"),
        ("commit", "{git_sha}"), ("method", "{method_version}"), ("run", "{run_id}"), ("started", "{started_at}"),
        ("took", "{seconds} s"),
    )),
)  # fmt: skip
_WHERE = "{method}\n{mask_label}, {seqlen}, {heads} heads, {direction_word}[, {ranks} ranks]\n"
TIP = {  # of a point, by whether it has a time
    "timed": _WHERE + "[{rate} UNIT[ ({low}–{high})], ]{ms} ms\nn = {n}[{over}][, IQR {iqr}]"
    "[\nerror [of {error_tensor} ]{ratio} of its budget[, memory {memory}[, {absolute_memory} in all]]][\n{published}][{rest}]",
    "other": _WHERE + "{status}[: {reason}][{rest}]",
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """A list of boxes above the table of records, and a part of its address."""

    name: str
    label: str
    column: str
    """the texts to choose from"""
    order: str = ""
    """the numbers by which they are sorted; "" for the order of records"""


FILTERS = (
    Filter("kind", "Kind", "kind"),
    Filter("method", "Method", "method"),
    Filter("mask", "Mask", "mask_label"),
    Filter("seqlen", "Length", "seqlen", "seqlen_order"),
    Filter("heads", "Heads", "heads"),
    Filter("world", "Ranks", "world", "world"),
    Filter("direction", "Direction", "direction"),
    Filter("seed", "Seed", "seed", "seed"),
    Filter("status", "Status", "status", "status_order"),
)


def layout(texts: Mapping[str, Sequence[Any]], unit: Unit) -> dict[str, Any]:
    """The columns, the filters and their options, and the templates of a page's records.

    Args:
        texts: `table_texts` of the records.
    """
    columns = [
        asdict(replace(column, title=unit.name if column.title == "RATE" else column.title))
        for column in TABLE
        if not column.optional or len(set(texts[column.optional])) > 1
    ]
    filters = []
    for entry in FILTERS:
        options = list(dict.fromkeys(texts[entry.column]))
        if entry.order:
            orders = dict(zip(texts[entry.column], map(int, texts[entry.order]), strict=True))
            options.sort(key=orders.__getitem__)
        if len(options) > 1:
            filters.append({"name": entry.name, "label": entry.label, "column": entry.column, "options": options})
    return {"columns": columns, "filters": filters, **templates(unit)}


def table_texts(table: pd.DataFrame, unit: Unit) -> dict[str, list[Any]]:
    """The texts of the table of records, and the numbers by which it is sorted (`…_order`).

    Args:
        table: `longca.report.series.labelled` of the records.
        unit: the unit of the page's rates.
    """
    same = table.groupby(SAME, dropna=False).cell_id.transform("size").to_numpy() if len(table) else ()
    orders = {status: place for place, status in enumerate(reversed(WORST_FIRST))}
    return {
        **tip_texts(table, unit),
        "kind": _words(table, "kind"),
        "mask": _words(table, "mask"),
        "head_dim": _words(table, "head_dim"),
        "dtype": _words(table, "dtype"),
        "direction": _words(table, "direction"),
        "seed": _words(table, "seed"),
        "device": _words(table, "device"),
        "notes": _words(table, "notes"),
        "ceiling": _numbers(table, "ceiling_percent", lambda value: number(value, 2)),
        "arrow": [ARROWS.get(str(drift), "") for drift in table.drift],
        "run_kernel": [str(method).rpartition("+")[2] for method in table.method],
        "run_strategy": [str(method).partition("+")[0] if "+" in str(method) else "'!*'" for method in table.method],
        "again": [_again(int(count) - 1) for count in same],
        "seqlen_order": [int(length) for length in table.seqlen],
        "status_order": [orders[str(status)] for status in table.status],
        **{name: _raw(table, column) for name, column in (
            ("rate_order", "tflops_per_device"), ("ms_order", "time_ms_median"), ("ceiling_order", "ceiling_percent"),
            ("iqr_order", "noise"), ("memory_order", "peak_bytes"), ("ratio_order", "budget_ratio"))},
    }  # fmt: skip


def tip_texts(table: pd.DataFrame, unit: Unit) -> dict[str, list[Any]]:
    """The texts of a figure's points that have one cell each.

    Args:
        table, unit: as for `table_texts`.
    """
    rates = {
        name: _numbers(table, column, lambda value: number(value * unit.factor))
        for name, column in (
            ("rate", "tflops_per_device"),
            ("low", "tflops_per_device_low"),
            ("high", "tflops_per_device_high"),
        )
    }
    return {
        "study": _words(table, "study"),
        "method": _words(table, "method"),
        "world": _words(table, "world"),
        "ranks": ["" if world == 1 else str(world) for world in table.world],
        "mask_label": _words(table, "mask_label"),
        "seqlen": [format_length(int(length)) for length in table.seqlen],
        "heads": _words(table, "heads"),
        "direction_word": [DIRECTIONS[str(direction)] for direction in table.direction],
        "status": _words(table, "status"),
        "reason": _words(table, "reason"),
        **rates,
        "ms": _numbers(table, "time_ms_median", lambda value: number(value, 4)),
        "iqr": _numbers(table, "noise", percent),
        "n": _numbers(table, "num_samples", lambda value: str(int(value))),
        "memory": _numbers(table, "peak_bytes", format_bytes),
        "absolute_memory": _numbers(table, "absolute_peak_bytes", format_bytes),
        "ratio": _numbers(table, "budget_ratio", percent),
        "error_tensor": _words(table, "error_tensor"),
    }


def detail_texts(table: pd.DataFrame, unit: Unit) -> dict[str, list[Any]]:
    """The texts of the details of records that their table does not have.

    Args:
        table, unit: as for `table_texts`.
    """

    def digits(column: str, count: int = 3, factor: float = 1.0) -> list[str]:
        return _numbers(table, column, lambda value: number(factor * value, count))

    parallel = (table.world > 1) & table.num_samples.notna()
    ran = table.num_samples.notna()
    texts = {
        **{name: _words(table, name) for name in (
            "mask_params", "corpus", "drawn", "mask_digest", "timer", "stopped", "error_reference", "error_scope",
            "memory_source", "clock_event_reasons", "hostname", "torch", "cuda", "method_version", "run_id",
            "started_at", "slowest_rank")},
        "density": digits("density"), "flops": digits("flops", 4), "nominal_flops": digits("nominal_flops", 4),
        "q1": digits("time_ms_q1", 4), "q3": digits("time_ms_q3", 4),
        "ceiling_percent": digits("ceiling_percent"), "ceiling_rate": digits("ceiling_tflops", factor=unit.factor),
        "peak_percent": digits("peak_percent"), "nominal_rate": digits("nominal_tflops", factor=unit.factor),
        "gb_per_s": digits("gb_per_s"), "nominal_ms": digits("nominal_ms"), "enqueue_ms": digits("enqueue_ms", 4),
        "mean_ranks": _where(digits("time_ms_mean_ranks", 4), table.world > 1),
        "ms_low": digits("time_ms_low", 5), "ms_high": digits("time_ms_high", 5),
        "precision": digits("precision_percent", 2),
        "drift_words": [DRIFTS.get(str(drift), "") for drift in table.drift],
        "drift_percent": _where(_numbers(table, "drift_percent", lambda value: number(abs(value), 2)),
                                table.drift.isin(list(ARROWS))),
        "mega_cycles": digits("mega_cycles_median", 4), "duty": digits("duty", factor=100.0),
        "warm_ups": _numbers(table, "warmup", lambda count: f"{int(count)} warm-up{'' if count == 1 else 's'}"),
        "warm_seconds": digits("warm_seconds", 2), "steady": _steady(table),
        "error": digits("error"), "error_budget": digits("error_budget"),
        "costs": [_LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", str(text)) for text in table.costs],
        "straggler": digits("straggler_percent"), "single": digits("single_percent"),
        "single_rate": digits("single_tflops", factor=unit.factor), "moved": _numbers(table, "moved_bytes", format_bytes),
        "formula": _numbers(table, "formula_bytes", format_bytes),
        "above_shards": _numbers(table, "above_shards_bytes", format_bytes), "permute_ms": digits("permute_ms"),
        "machines": _where(_words(table, "num_nodes"), parallel),
        "sm_clock": digits("sm_clock_mhz_median", 4), "power": digits("power_w_median"),
        "temperature": digits("temperature_c_max"), "git_sha": [str(sha)[:12] for sha in table.git_sha],
        "seconds": digits("seconds"),
    }  # fmt: skip
    kept = {"drift_words": ran} | dict.fromkeys(
        ("slowest_rank", "straggler", "single", "single_rate", "moved", "formula", "above_shards", "permute_ms"),
        parallel,
    )
    return {name: _where(values, kept[name]) if name in kept else values for name, values in texts.items()}


def merged_texts(table: pd.DataFrame, marks: Sequence[str], unit: Unit) -> dict[str, list[Any]]:
    """The texts of points that have several cells, or some that the page does not hold: medians over cells, and the
    widest spread.

    Args:
        table: `longca.report.series.labelled` of the page's records, in their order.
        marks: for each point the rows of its cells, as in the drawings: "3+7", "3+7/50".
        unit: as for `table_texts`.
    """
    import pandas as pd

    rows = []
    for mark in marks:
        held, _, count = mark.partition("/")
        cells = table.iloc[[int(row) for row in held.split("+")]]
        timed = cells[(cells.status == "ok") & cells.time_ms_median.notna()]
        row = cells.iloc[0].to_dict()
        if len(timed):
            worst = timed.iloc[int(timed.budget_ratio.astype(float).fillna(-1.0).to_numpy().argmax())]
            whole = timed.tflops_per_device_low.notna().all()
            row = timed.iloc[0].to_dict() | {
                "time_ms_median": timed.time_ms_median.astype(float).median(),
                "tflops_per_device": timed.tflops_per_device.astype(float).median(),
                "tflops_per_device_low": timed.tflops_per_device_low.astype(float).min() if whole else None,
                "tflops_per_device_high": timed.tflops_per_device_high.astype(float).max() if whole else None,
                "noise": timed.noise.astype(float).max(),
                "num_samples": timed.num_samples.sum(),
                "budget_ratio": worst.budget_ratio,
                "error_tensor": worst.error_tensor,
            }
        row["over"] = f" over {len(timed)} cells" if len(timed) > 1 else ""
        row["rest"] = (
            f"\nof {len(cells)} of its {count} cells: the others are not on this page" if count else ""
        )
        rows.append(row)
    if not rows:
        return {}
    merged = pd.DataFrame(rows)
    return {**tip_texts(merged, unit), "over": _words(merged, "over"), "rest": _words(merged, "rest")}


def templates(unit: Unit) -> dict[str, Any]:
    """The templates of tips, of details and of the command, with the page's unit."""
    groups = [[title, [[name, text.replace("UNIT", unit.name)] for name, text in entries]] for title, entries in DETAILS]
    tips = {name: text.replace("UNIT", unit.name) for name, text in TIP.items()}
    return {"details": groups, "tips": tips, "command": COMMAND, "searched": SEARCHED, "counted": COUNTED, "none": NONE, "unit": unit.name}


def _again(count: int) -> str:
    if not count:
        return "Measure it again: "
    return f"Measure it again, with {count} other{'' if count == 1 else 's'} that differ in heads or parameters: "


def _steady(table: pd.DataFrame) -> list[str]:
    return ["" if is_missing(value) else STEADY[bool(value)] for value in table.steady]


def _words(table: pd.DataFrame, column: str) -> list[str]:
    return ["" if is_missing(value) else str(value) for value in table[column]] if column in table else [""] * len(table)


def _numbers(table: pd.DataFrame, column: str, text: Callable[[float], str]) -> list[str]:
    """The texts of a column's numbers; "" for missing ones."""
    return ["" if is_missing(value) else text(float(value)) for value in table[column]]


def _raw(table: pd.DataFrame, column: str) -> list[float | None]:
    """Five significant digits of a column's numbers; None for missing ones."""
    values = [None if is_missing(value) or math.isinf(value) else float(f"{value:.5g}") for value in table[column]]
    return [int(value) if value is not None and value.is_integer() else value for value in values]


def _where(texts: list[str], kept: Any) -> list[str]:
    return [text if keep else "" for text, keep in zip(texts, kept, strict=True)]
