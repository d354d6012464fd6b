"""Derived tables of made-up points, for claims to be judged by: every column is there, since each row begins
as a real record's."""

import functools
import hashlib
import itertools
from typing import Any

import pandas as pd

from longca.lab.store.table import columns
from longca.lab.studies.cell import Cell
from tests.helpers.records import record

FRAME_TYPES = {"str": "object", "int": "Int64", "float": "float64", "bool": "boolean", "floats": "object"}
GIB = 1 << 30
NUMBERS = (
    "tflops_per_device",
    "tflops_per_device_low",
    "tflops_per_device_high",
    "absolute_peak_bytes",
    "moved_bytes",
    "formula_bytes",
    "formula_replicated_bytes",
    "straggler_percent",
    "error_out",
    "error_dq",
    "error_dk",
    "error_dv",
    "density",
)


@functools.cache
def _base() -> dict[str, Any]:
    """The row of one real record, without its measurements."""
    cell = Cell(
        kind="kernel",
        kernel="fa3",
        mask="full",
        seqlen=8192,
        num_q_heads=64,
        num_kv_heads=8,
        head_dim=128,
        dtype="bf16",
        direction="fwd",
    )
    values = columns([record(cell, tflops=500, gpu="NVIDIA H200")])
    return {name: value for name, [value] in values.items()} | dict.fromkeys(NUMBERS)


def grid(rate: float | None = 500, **fields: Any) -> list[dict[str, Any]]:
    """Rows of all combinations of those fields that are lists.

    Args:
        rate: TFLOP/s, with samples up to 0.5 % beside it; None for points that did not run.
        fields: columns of the table, and `heads` ("64:8").
    """
    axes = {name: values for name, values in fields.items() if isinstance(values, list)}
    return [
        _row(rate, fields | dict(zip(axes, chosen, strict=True)))
        for chosen in itertools.product(*axes.values())
    ]


def table(*groups: list[dict[str, Any]]) -> pd.DataFrame:
    """A derived table of these rows."""
    content = [row for group in groups for row in group]
    return pd.DataFrame(
        {
            name: pd.Series([row[name] for row in content], dtype=FRAME_TYPES[kind])
            for name, kind in _types().items()
        }
    )


def _row(rate: float | None, fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields.pop("heads", "64:8").split(":")
    row = _base() | {"num_q_heads": int(heads[0]), "num_kv_heads": int(heads[1])} | fields
    row["kind"] = "cp" if row["strategy"] else "kernel"
    row["new_tokens"] = row["seqlen"]
    if row["status"] == "ok" and rate is not None:
        row |= {
            "tflops_per_device": float(rate),
            "tflops_per_device_low": 0.995 * rate,
            "tflops_per_device_high": 1.005 * rate,
            "samples_ms": fields.get("samples_ms")
            or [1e3 / rate * step for step in (0.995, 0.998, 1, 1.002, 1.005)],
        }
    asked = (
        "kernel",
        "strategy",
        "world",
        "mask",
        "mask_params",
        "seqlen",
        "num_kv_heads",
        "direction",
        "seed",
    )
    row["cell_id"] = hashlib.sha256(" ".join(str(row[name]) for name in asked).encode()).hexdigest()[:16]
    assert row.keys() == _types().keys(), "no such column"
    return row


@functools.cache
def _types() -> dict[str, str]:
    from longca.lab.store.columns import COLUMNS

    return {column.name: column.type for column in COLUMNS}
