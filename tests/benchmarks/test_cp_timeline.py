"""Tests of exposed messages, on timelines made by hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cp.timeline import Event, events_of, main, rows_of
from tools.table import read_records

EVENTS = [
    ("kernel", "ncclDevKernel_SendRecv", 0, 4000),
    ("kernel", "forward_kernel", 1000, 2000),
    ("kernel", "add_kernel", 3500, 500),
    ("kernel", "queries_kernel", 6000, 1000),
    ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 6500, 2000),
    ("cpu_op", "aten::add", 0, 9000),
]


def trace(events: list[tuple[str, str, float, float]]) -> dict:
    return {
        "traceEvents": [
            {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length}
            for kind, name, start, length in events
        ]
    }


def test_each_step_and_the_whole() -> None:
    lines = rows_of("one", events_of(trace(EVENTS)))
    assert [line["step"] for line in lines] == [0, 1, 2, "all"]
    before, first, second, whole = lines
    assert (before["messages_ms"], before["exposed_ms"], before["attention_ms"]) == (1.0, 1.0, 0.0)
    assert [first[f"{part}_ms"] for part in ("attention", "other", "messages", "exposed", "idle")] == [
        2.0,
        0.5,
        3.0,
        0.5,
        2.0,
    ]
    assert (second["attention_ms"], second["exposed_ms"], second["idle_ms"]) == (1.0, 1.5, 0.0)
    assert whole["exposed_ms"] == 3.0 and whole["idle_ms"] == 2.0 and whole["attention_ms"] == 3.0


spans = st.tuples(st.integers(0, 50), st.integers(1, 20))


@given(st.lists(spans, max_size=8), st.lists(spans, max_size=8))
def test_parts_add_up(messages: list[tuple[int, int]], attention: list[tuple[int, int]]) -> None:
    events = sorted(
        [
            *(Event("nccl", start, start + length) for start, length in messages),
            *(Event("forward_kernel", start, start + length) for start, length in attention),
        ],
        key=lambda event: event.start,
    )
    lines = rows_of("any", events)
    if not events:
        assert not lines
        return
    length = max(event.end for event in events) - events[0].start
    *steps, whole = lines
    for line in steps:
        assert min(value for key, value in line.items() if key.endswith("_ms")) >= 0
    parts = ("attention_ms", "other_ms", "exposed_ms", "idle_ms")
    assert sum(whole[part] for part in parts) == pytest.approx(length / 1e3)
    for part in parts:
        assert sum(line[part] for line in steps) == pytest.approx(whole[part], abs=1e-9)
    if not attention:
        assert whole["exposed_ms"] == pytest.approx(whole["messages_ms"])
    if not messages:
        assert whole["exposed_ms"] == 0


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "full-band-ring_p2p-rank0.json"
    path.write_text(json.dumps(trace(EVENTS)))
    assert main([str(path), "--steps", "--out", str(tmp_path)]) == 0
    assert [line["step"] for line in read_records(tmp_path, "cp_timeline")] == ["0", "1", "2", "all"]
