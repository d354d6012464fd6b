"""The records as data of the page: columns of short values, from which the script builds the table and the
details."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from longca.lab.studies.record import Failed, Record

if TYPE_CHECKING:
    import pandas as pd

LOG_END = 1500  # characters
# characters that may end a script, as JSON escapes
UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "&<>\u2028\u2029"}
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")
TABLE = (  # columns of the table of records
    "anchor",
    "study",
    "kind",
    "method",
    "world",
    "mask",
    "mask_label",
    "seqlen",
    "heads",
    "head_dim",
    "dtype",
    "direction",
    "seed",
    "device",
    "status",
    "reason",
    "notes",
    "log",
    "tflops_per_device",
    "ceiling_percent",
    "time_ms_median",
    "noise",
    "drift",
    "num_samples",
    "peak_bytes",
    "budget_ratio",
)
DETAILS = (  # columns of the details of a record
    "mask_params",
    "corpus",
    "tflops_per_device_low",
    "tflops_per_device_high",
    "time_ms_q1",
    "time_ms_q3",
    "time_ms_low",
    "time_ms_high",
    "precision_percent",
    "drift_percent",
    "time_ms_mean_ranks",
    "enqueue_ms",
    "warmup",
    "warm_seconds",
    "steady",
    "duty",
    "timer",
    "stopped",
    "samples_ms",
    "density",
    "flops",
    "nominal_flops",
    "nominal_tflops",
    "peak_percent",
    "ceiling_tflops",
    "gb_per_s",
    "nominal_ms",
    "drawn",
    "mask_digest",
    "error_tensor",
    "error",
    "error_budget",
    "error_reference",
    "error_scope",
    "absolute_peak_bytes",
    "above_shards_bytes",
    "memory_source",
    "straggler_percent",
    "slowest_rank",
    "single_percent",
    "single_tflops",
    "moved_bytes",
    "formula_bytes",
    "permute_ms",
    "num_nodes",
    "costs",
    "sm_clock_mhz_median",
    "mega_cycles_median",
    "clock_event_reasons",
    "power_w_median",
    "temperature_c_max",
    "hostname",
    "torch",
    "cuda",
    "environment",
    "asked",
    "git_sha",
    "method_version",
    "run_id",
    "started_at",
    "seconds",
)

MOST_ROWS = 8_000  # records of a page, which then stays small enough for e-mail, and fast
# fields that are equal for all draws of a cell
CASE = ["kind", "method", "mask_label", "setting", "direction", "seqlen", "world", "status"]
POINT = (  # columns of the tooltip of a point
    "study",
    "method",
    "world",
    "mask_label",
    "seqlen",
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


def on_page(table: pd.DataFrame, first: Collection[str]) -> list[int]:
    """The positions of a page's records, in order: all, or at most `MOST_ROWS`.

    Named cells have priority, then one draw of each case and status, then the second draw of each, and so on.

    Args:
        table: `longca.lab.report.series.labelled` of the records.
        first: named cells.
    """
    if len(table) <= MOST_ROWS:
        return list(range(len(table)))
    draw = (
        table.groupby(CASE, sort=False, dropna=False).cumcount().where(~table.cell_id.isin(list(first)), -1)
    )
    return sorted(draw.to_numpy().argsort(kind="stable")[:MOST_ROWS].tolist())


def anchors(cell_ids: Iterable[str]) -> list[str]:
    """One name for each record: its cell id, numbered if a cell has several records."""
    seen: Counter[str] = Counter()
    names = []
    for cell_id in cell_ids:
        seen[cell_id] += 1
        names.append(cell_id if seen[cell_id] == 1 else f"{cell_id}-{seen[cell_id]}")
    return names


def rows_json(
    records: list[Record], table: pd.DataFrame, *, samples: bool = True, details: bool = True
) -> str:
    """JSON, escaped for a script element: column → {"values": […]}, {"names": […], "at": [index …]} or
    {"every": value}.

    Args:
        table: `longca.lab.report.series.labelled` of the records, in their order.
        samples: include the ordered samples, for small charts.
        details: include the details of records.
    """
    content: dict[str, list[Any]] = {
        name: table[name].tolist() for name in (*TABLE, *DETAILS) if name in table
    }
    content["anchor"] = anchors(table.cell_id)
    content["costs"] = [
        _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", text) for text in table.costs
    ]
    content["log"] = [
        record.outcome.log[-LOG_END:] if isinstance(record.outcome, Failed) else "" for record in records
    ]
    left_out = {*(() if details else DETAILS), *(() if samples else ("samples_ms",))}
    return _packed({name: [None] if name in left_out else content[name] for name in (*TABLE, *DETAILS)})


def points_json(table: pd.DataFrame, more: Mapping[str, list[Any]]) -> str:
    """The same for tooltips of a figure's points, for a page without a table of records.

    Args:
        table: `longca.lab.report.series.labelled` of the records.
        more: further columns.
    """
    return _packed(
        {name: table[name].tolist() for name in POINT} | {"anchor": table.cell_id.tolist()} | dict(more)
    )


def _packed(columns: Mapping[str, list[Any]]) -> str:
    packed = {name: _pack([_short(value) for value in values]) for name, values in columns.items()}
    return json.dumps(packed, separators=(",", ":"), ensure_ascii=False).translate(UNSAFE)


def _pack(values: list[Any]) -> dict[str, Any]:
    """A column in which repeated values are stored once."""
    if not any(isinstance(value, list) for value in values):
        names = list(dict.fromkeys(values))
        if len(names) == 1:
            return {"every": names[0]}
        if len(names) <= len(values) / 4:
            index = {name: number for number, name in enumerate(names)}
            return {"names": names, "at": [index[value] for value in values]}
    return {"values": values}


def _short(value: Any) -> Any:
    """Five significant digits; NaN becomes null, infinity a text."""
    if isinstance(value, tuple):
        return [_short(part) for part in value]
    if value is None or type(value).__name__ == "NAType":
        return None
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "∞"
        rounded = float(f"{value:.5g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value if isinstance(value, (str, bool)) else int(value)
