"""Values that no field should have, and records in which any field has any of them."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from longca.core.cell import Cell
from longca.core.record import Failed, Record
from longca.store.cells import CellStore
from tests.records import record

GPU = "NVIDIA H200"
DEEP = 700  # levels: fewer than Python reads, more than it writes with a frame for each
Place = tuple[str | int, ...]


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -2**63 - 1, 10**400, 0.0, -0.0, 5e-324, 1e-7, 1e12, 1e30, 1e308, -1e308,
    float("nan"), float("inf"), "", " ", "abc", "NaN", "Infinity", "1", "-1", "1e400", "9" * 5000, "\ud800", "a\udc00b", "\x00", "a\nb\tc", "\x1b[31m",
    "\u202eabc", "\u2028", "é∞…", "../../x", "<script>", "x" * 300, "x" * 20_000, "x" * 200_000, [], [None], [[]], [1], ["a"], {}, {"": 0},
    {"a": 1}, {"\ud800": 1}, {"status": "ok"}, _nested(DEEP), {"a": _nested(DEEP)}, [0] * 100_000, "2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+00:00"]

values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


def whole_record(seed: int, kind: str = "ok") -> dict[str, Any]:
    """A record as JSON in which every part is there: a block-sparse cell of four ranks on GPUs, a failure or a control."""
    if kind == "control":
        cell = Cell(kind="kernel", kernel="matmul", mask="full", seqlen=4096 + 64 * seed, num_q_heads=1, num_kv_heads=1, head_dim=64, dtype="bf16",
                    direction="fwd")
        return json.loads(record(cell, gpu=GPU).model_dump_json())
    cell = Cell(kind="cp", kernel="sdpa", strategy="usp", strategy_params={"heads": 2}, world=2, mask="block_sparse_uniform",
                mask_params={"block": 64, "density": 0.5, "scores": "random"}, corpus="pile", seqlen=4096 + 64 * seed, num_q_heads=8, num_kv_heads=2,
                head_dim=64, dtype="bf16", direction="bwd", input_values="normal")
    outcome = Failed(type="ValueError", message="no", log="raised at: a.py:1 in f\nlast") if kind == "failed" else None
    content = json.loads(record(cell, outcome, gpu=GPU).model_dump_json())
    if kind == "ok":
        content["memory"]["above_shards_bytes"] = [1, 2]
        content["accuracy"]["worst_row"] = {"out": 0.5}
        content["samples"]["enqueue_ms"] = 0.1
        content["notes"] = ["a note"]
    return content


def places(content: Any, path: Place = ()) -> Iterator[Place]:
    """The place of every value in JSON, of mappings and lists too."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


PLACES = [(kind, place) for kind in ("ok", "failed", "control") for place in places(whole_record(0, kind))]


def changed(kind: str, place: Place, value: Any, seed: int) -> dict[str, Any]:
    """A record with this value in that place. Where its cell is one still, its id is that of the cell: so only bounds can refuse it."""
    content = copy.deepcopy(whole_record(seed, kind))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if place[0] == "cell":
        try:
            content["cell_id"] = Cell.model_validate(content["cell"]).cell_id
        except (ValidationError, ValueError):
            pass
    return content


def write(store: CellStore, content: dict[str, Any]) -> Path:
    """The file of a record, whatever it holds."""
    name = content["cell_id"] if isinstance(content["cell_id"], str) and content["cell_id"].isalnum() else "ff" + "0" * 14
    path = store.path(name[:100])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(content))
    return path


def _text(content: Any) -> str:
    """JSON of numbers and texts that Python's own writer refuses, too."""
    import sys

    digits, depth = sys.get_int_max_str_digits(), sys.getrecursionlimit()
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(10_000)
    try:
        return json.dumps(content)
    finally:
        sys.set_int_max_str_digits(digits)
        sys.setrecursionlimit(depth)


def is_record(content: dict[str, Any]) -> bool:
    """True if it passes the schema."""
    try:
        Record.model_validate(content)
    except (ValidationError, RecursionError):
        return False
    return True
