"""Values that no field should have, and records in which any field has any of them."""

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from longca.lab.store.cells import CellStore
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Failed
from tests.helpers.records import record

GPU = "NVIDIA H200"
KINDS = ("ok", "failed", "control")
DEEP = 700  # levels: fewer than Python reads, more than it writes with a frame for each
Place = tuple[str | int, ...]


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    0.0,
    -0.0,
    5e-324,
    1e-7,
    1e12,
    1e30,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "abc",
    "NaN",
    "Infinity",
    "1",
    "-1",
    "1e400",
    "9" * 5000,
    "\ud800",
    "a\udc00b",
    "\x00",
    "a\nb\tc",
    "\x1b[31m",
    "\u202eabc",
    "\u2028",
    "é∞…",
    "../../x",
    "<script>",
    "x" * 300,
    "x" * 20_000,
    "x" * 200_000,
    [],
    [None],
    [[]],
    [1],
    ["a"],
    {},
    {"": 0},
    {"a": 1},
    {"\ud800": 1},
    {"status": "ok"},
    _nested(DEEP),
    {"a": _nested(DEEP)},
    [0] * 100_000,
    "2026-01-01T00:00:00",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+00:00",
]

values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@cache
def _whole(kind: str) -> dict[str, Any]:
    return _newest(kind) | {
        "schema_version": 1
    }  # whose texts may be without a checksum, so that bounds alone refuse them


def _newest(kind: str) -> dict[str, Any]:
    if kind == "control":
        cell = Cell(
            kind="kernel",
            kernel="matmul",
            mask="full",
            seqlen=4096,
            num_q_heads=1,
            num_kv_heads=1,
            head_dim=64,
            dtype="bf16",
            direction="fwd",
        )
        return json.loads(record(cell, gpu=GPU).model_dump_json())
    cell = Cell(
        kind="cp",
        kernel="sdpa",
        strategy="usp",
        strategy_params={"heads": 2},
        world=2,
        mask="block_sparse_uniform",
        mask_params={"block": 64, "density": 0.5, "scores": "random"},
        corpus="pile",
        seqlen=4096,
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=64,
        dtype="bf16",
        direction="bwd",
    )
    outcome = (
        Failed(type="ValueError", message="no", log="raised at: a.py:1 in f\nlast")
        if kind == "failed"
        else None
    )
    content = json.loads(record(cell, outcome, gpu=GPU).model_dump_json())
    if kind == "ok":
        content["memory"]["above_shards_bytes"] = [1, 2]
        content["accuracy"]["worst_row"] = {"out": 0.5}
        content["samples"]["enqueue_ms"] = 0.1
        content["notes"] = ["a note"]
    return content


def whole_record(kind: str, number: int) -> dict[str, Any]:
    """A record as JSON in which every part is there: a cell of two ranks on GPUs, the same that failed, or a
    control.

    Args:
        number: records of one kind have as many cells as numbers.
    """
    content = copy.deepcopy(_whole(kind))
    content["cell"]["seqlen"] += 64 * number
    content["cell_id"] = Cell.model_validate(content["cell"]).cell_id
    return content


def _places(content: Any, path: Place = ()) -> Iterator[Place]:
    if path:
        yield path
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        yield from _places(value, (*path, key))


PLACES = [(kind, place) for kind in KINDS for place in _places(_whole(kind))]
"""the place of every value in these records, of mappings and lists too"""


def changed(kind: str, place: Place, value: Any, number: int) -> dict[str, Any]:
    """A record with this value in that place. Where its cell is one still, its id is that of the cell: so
    only bounds can refuse it."""
    content = whole_record(kind, number)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if place[0] == "cell":
        with suppress(ValidationError, ValueError):
            content["cell_id"] = Cell.model_validate(content["cell"]).cell_id
    return content


def as_json(content: Any) -> str:
    """JSON of numbers and depths that Python's own writer refuses, too, without blanks: as records are
    written."""
    digits = sys.get_int_max_str_digits()
    depth = sys.getrecursionlimit()
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(10_000)
    try:
        return json.dumps(content, separators=(",", ":"))
    finally:
        sys.set_int_max_str_digits(digits)
        sys.setrecursionlimit(depth)


def put(store: CellStore, content: dict[str, Any]) -> Path:
    """Write the file of a record, whatever it holds."""
    cell_id = content["cell_id"]
    name = (
        cell_id[:100]
        if isinstance(cell_id, str) and cell_id.isascii() and cell_id.isalnum()
        else "ff" + "0" * 14
    )
    path = store.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(content))
    return path
