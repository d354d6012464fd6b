"""The words and numbers of records as a page shows them (`longca.lab.report.content.record_layout`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.report.matrix import WORST_FIRST
from longca.lab.report.series import DIRECTIONS
from longca.lab.store.table import NEW_TOKENS, NO_CONTEXT
from longca.lab.store.text import format_bytes, is_missing, number, percent

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.report.series import Unit

_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")
ARROWS = {"rising": " ↗", "falling": " ↘"}
DRIFTS = {
    "rising": "the samples get slower",
    "falling": "the samples get faster",
    "none": "none",
    "unknown": "unknown: fewer than ten samples",
}
STEADY = {True: ", steady", False: ", not steady yet"}
QUOTED_NONE = "'!*'"  # no strategy
SAME = [
    "study",
    "method",
    "mask",
    "seqlen",
    "new_tokens",
    "world",
    "direction",
    "seed",
]  # what the command of a record names


MERGED = (
    "study",
    "method",
    "world",
    "mask_label",
    "seqlen",
    "new_choice",
    "heads",
    "direction",
    "status",
    "reason",
    "tflops_per_device",
    "tflops_per_device_low",
    "tflops_per_device_high",
    "time_ms_median",
    "noise",
    "num_samples",
    "peak_bytes",
    "absolute_peak_bytes",
    "budget_ratio",
    "error_tensor",
)
"""the columns that `tip_texts` reads"""


def table_texts(table: pd.DataFrame, unit: Unit) -> dict[str, list[Any]]:
    """The texts of the table of records, and the numbers by which it is sorted (`…_order`).

    Args:
        table: `longca.lab.report.series.labelled` of the records.
        unit: the unit of the page's rates.
    """
    same = table.groupby(SAME, dropna=False).cell_id.transform("size").to_numpy() if len(table) else ()
    orders = {status: index for index, status in enumerate(reversed(WORST_FIRST))}
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
        "run_as": [_options(str(method)) for method in table.method],
        "again": [_again(int(count) - 1) for count in same],
        "seqlen_order": [int(length) for length in table.seqlen],
        "new_or_all": [text or "all" for text in _new(table)],
        "new_order": [int(count) for count in table.new_tokens],
        "status_order": [orders[str(status)] for status in table.status],
        "rate_order": _raw(table, "tflops_per_device"),
        "ms_order": _raw(table, "time_ms_median"),
        "ceiling_order": _raw(table, "ceiling_percent", 3),
        "iqr_order": _raw(table, "noise", 3),
        "memory_order": _raw(table, "peak_bytes"),
        "ratio_order": _raw(table, "budget_ratio", 3),
    }


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
        "new": _new(table),
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


def _new(table: pd.DataFrame) -> list[str]:
    """The number of new tokens; "" where all tokens are queries."""
    return [
        "" if text in ("", NO_CONTEXT) else text.removesuffix(NEW_TOKENS)
        for text in table.new_choice.tolist()
    ]


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
        **{
            name: _words(table, name)
            for name in (
                "mask_params",
                "corpus",
                "drawn",
                "mask_digest",
                "timer",
                "stopped",
                "error_reference",
                "error_scope",
                "memory_source",
                "clock_event_reasons",
                "hostname",
                "torch",
                "cuda",
                "method_version",
                "run_id",
                "slowest_rank",
            )
        },
        "started_at": [str(time).replace("+00:00", "Z") for time in table.started_at],
        "density": digits("density"),
        "flops": digits("flops", 4),
        "nominal_flops": digits("nominal_flops", 4),
        "q1": digits("time_ms_q1", 4),
        "q3": digits("time_ms_q3", 4),
        "ceiling_percent": digits("ceiling_percent"),
        "ceiling_rate": digits("ceiling_tflops", factor=unit.factor),
        "peak_percent": digits("peak_percent"),
        "nominal_rate": digits("nominal_tflops", factor=unit.factor),
        "gb_per_s": digits("gb_per_s"),
        "nominal_ms": digits("nominal_ms"),
        "enqueue_ms": digits("enqueue_ms", 4),
        "mean_ranks": _where(digits("time_ms_mean_ranks", 4), table.world > 1),
        "ms_low": digits("time_ms_low", 5),
        "ms_high": digits("time_ms_high", 5),
        "precision": digits("precision_percent", 2),
        "drift_words": [DRIFTS.get(str(drift), "") for drift in table.drift],
        "drift_percent": _where(
            _numbers(table, "drift_percent", lambda value: number(abs(value), 2)),
            table.drift.isin(list(ARROWS)),
        ),
        "mega_cycles": digits("mega_cycles_median", 4),
        "duty": digits("duty", factor=100.0),
        "warm_ups": _numbers(
            table, "warmup", lambda count: f"{int(count)} warm-up{'' if count == 1 else 's'}"
        ),
        "warm_seconds": digits("warm_seconds", 2),
        "steady": _steady(table),
        "error": digits("error"),
        "error_budget": digits("error_budget"),
        "costs": [
            _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", str(text)) for text in table.costs
        ],
        "straggler": digits("straggler_percent"),
        "single": digits("single_percent"),
        "single_rate": digits("single_tflops", factor=unit.factor),
        "moved": _numbers(table, "moved_bytes", format_bytes),
        "formula": _numbers(table, "formula_bytes", format_bytes),
        "above_shards": _numbers(table, "above_shards_bytes", format_bytes),
        "permute_ms": digits("permute_ms"),
        "machines": _where(_words(table, "num_nodes"), parallel),
        "sm_clock": digits("sm_clock_mhz_median", 4),
        "power": digits("power_w_median"),
        "temperature": digits("temperature_c_max"),
        "git_sha": [str(sha)[:12] for sha in table.git_sha],
        "seconds": digits("seconds"),
    }
    kept = {"drift_words": ran} | dict.fromkeys(
        (
            "slowest_rank",
            "straggler",
            "single",
            "single_rate",
            "moved",
            "formula",
            "above_shards",
            "permute_ms",
        ),
        parallel,
    )
    return {name: _where(values, kept[name]) if name in kept else values for name, values in texts.items()}


def merged_texts(table: pd.DataFrame, marks: Sequence[str], unit: Unit) -> dict[str, list[Any]]:
    """The texts of points that have several cells, or some that the page does not hold: medians over cells,
    and the widest spread.

    Args:
        table: `longca.lab.report.series.labelled` of the page's records, in their order.
        marks: for each point the rows of its cells, as in the drawings: "3+7", "3+7/50".
        unit: as for `table_texts`.
    """
    import pandas as pd

    # plain values: a page has thousands of points, and a selection of a frame takes a millisecond
    columns = {name: table[name].tolist() for name in MERGED if name in table}
    rows = []
    for mark in marks:
        held, _, count = mark.partition("/")
        cells = [{name: values[int(row)] for name, values in columns.items()} for row in held.split("+")]
        timed = [cell for cell in cells if cell["status"] == "ok" and not is_missing(cell["time_ms_median"])]
        row = (timed or cells)[0]
        if timed:
            worst = max(timed, key=lambda cell: _number_or(cell["budget_ratio"], -1.0))
            whole = not any(is_missing(cell["tflops_per_device_low"]) for cell in timed)
            row = row | {
                "time_ms_median": _of_all(median, timed, "time_ms_median"),
                "tflops_per_device": _of_all(median, timed, "tflops_per_device"),
                "tflops_per_device_low": _of_all(min, timed, "tflops_per_device_low") if whole else None,
                "tflops_per_device_high": _of_all(max, timed, "tflops_per_device_high") if whole else None,
                "noise": _of_all(max, timed, "noise"),
                "num_samples": sum(_number_or(cell["num_samples"], 0) for cell in timed),
                "budget_ratio": worst["budget_ratio"],
                "error_tensor": worst["error_tensor"],
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


def _number_or(value: Any, other: float) -> Any:
    return other if is_missing(value) else value


def _of_all(summary: Callable[[list[float]], float], cells: list[dict[str, Any]], name: str) -> float:
    """The median or the like of a column's numbers; NaN without any."""
    numbers = [float(cell[name]) for cell in cells if not is_missing(cell[name])]
    return summary(numbers) if numbers else math.nan


def _again(count: int) -> str:
    if not count:
        return "Measure it again: "
    others = f"{count} other{'' if count == 1 else 's'}"
    return f"Measure it again, with {others} that differ in heads or parameters: "


def _options(method: str) -> str:
    """The options of `longca run` for a method."""
    strategy, _, kernel = method.rpartition("+")
    return f"-k {kernel} -c {strategy or QUOTED_NONE}"


def _steady(table: pd.DataFrame) -> list[str]:
    return ["" if is_missing(value) else STEADY[bool(value)] for value in table.steady]


def _words(table: pd.DataFrame, column: str) -> list[str]:
    return (
        ["" if is_missing(value) else str(value) for value in table[column]]
        if column in table
        else [""] * len(table)
    )


def _numbers(table: pd.DataFrame, column: str, text: Callable[[float], str]) -> list[str]:
    """The texts of a column's numbers; "" for missing ones."""
    return ["" if is_missing(value) else text(float(value)) for value in table[column]]


def _raw(table: pd.DataFrame, column: str, digits: int = 5) -> list[float | None]:
    """This many significant digits of a column's numbers; None for missing ones."""
    values = [
        None if is_missing(value) or math.isinf(value) else float(f"{value:.{digits}g}")
        for value in table[column]
    ]
    return [int(value) if value is not None and value.is_integer() else value for value in values]


def _where(texts: list[str], kept: Any) -> list[str]:
    return [text if keep else "" for text, keep in zip(texts, kept, strict=True)]
