"""Columns that follow from other rows: shares of what a device reached, and of one device alone."""

import pytest

from longca.core.hardware import load_hardware
from longca.lab.studies.outcome import Incorrect
from tests.helpers.records import record
from tests.helpers.store.rows import CELL, FACTS, changed, control, rows, samples


def test_attention_is_held_against_what_its_own_device_reached_in_its_own_study():
    def timed(cell, time_ms, **fields):
        return record(cell, samples=samples((time_ms,), timer="cuda_event"), **fields)

    here = {"gpu": "NVIDIA H200", "study": "a"}
    records = [
        timed(CELL, 1.0, **here, mask=FACTS),
        timed(control("matmul"), 5.0, **here),
        timed(control("matmul", seqlen=4096), 20.0, **here),
        timed(control("matmul", dtype="fp16"), 0.1, **here),
        timed(control("matmul"), 0.1, gpu="NVIDIA H100 NVL", study="a"),
        timed(control("matmul"), 0.1, gpu="NVIDIA H200", study="b"),
        timed(control("device_copy", dtype="fp16"), 2.0, **here),
        record(control("matmul", seqlen=8192), Incorrect(reason="out is off by 0.1, allowed 0.004"), **here),
    ]
    first, *rest = rows(records, load_hardware())
    assert first["ceiling_tflops"] == pytest.approx(max(2 * 2048**3 / 5e9, 2 * 4096**3 / 20e9))
    assert first["ceiling_percent"] == pytest.approx(
        100 * first["tflops_per_device"] / first["ceiling_tflops"]
    )
    assert first["ceiling_gb_per_s"] == pytest.approx(4 * 2048 * 4 * 16 / 2e-3 / 1e9)  # a copy has no dtype
    assert all(row["ceiling_percent"] is None for row in rest)
    for alone in (rows([records[0]]), rows(records[:1] + records[3:])):
        assert alone[0]["ceiling_tflops"] is None and alone[0]["ceiling_percent"] is None


def test_ranks_are_held_against_one_device_each():
    cell = CELL.model_copy(update={"kind": "cp", "strategy": "ulysses", "world": 2})
    actual = rows(
        [
            record(cell, mask=FACTS, samples=samples((1.0,), (1.0,))),
            record(control("matmul"), samples=samples((5.0,))),
        ]
    )[0]
    assert actual["ceiling_percent"] == pytest.approx(100 * actual["tflops"] / 2 / actual["ceiling_tflops"])


def test_ranks_are_held_against_their_kernel_alone():
    cell = changed(kind="cp", strategy="ulysses", world=2)
    both = record(cell, mask=FACTS, samples=samples((1.0,), (1.0,)))

    def percent(*others):
        return rows([both, *others])[0]["single_percent"]

    def single(time_ms, cell=CELL, **fields):
        return record(cell, mask=FACTS, samples=samples((time_ms,)), **fields)

    assert (
        percent(single(1.5)) == pytest.approx(75.0) and rows([both, single(1.5)])[1]["single_percent"] is None
    )
    early, late = (
        single(time_ms, started_at=f"2026-11-20T1{hour}:00:00Z") for time_ms, hour in ((1.5, 0), (1.0, 1))
    )
    assert percent(late, early) == pytest.approx(50.0)  # the later one
    others = (
        {"direction": "bwd"},
        {"seqlen": 200},
        {"mask": "full"},
        {"num_kv_heads": 4},
        {"kernel": "naive"},
        {"seed": 1},
    )
    assert all(percent(single(1.5, changed(**change))) is None for change in others)
    assert percent(single(1.5, study="other")) is percent(single(1.5, gpu="NVIDIA H200")) is percent() is None
    assert percent(record(CELL, Incorrect(reason="off"))) is None


def test_each_device_is_held_against_its_own_controls_and_else_against_those_of_its_model():
    def timed(cell, time_ms, uuid, gpu="NVIDIA H200"):
        stored = record(cell, samples=samples((time_ms,), timer="cuda_event"), mask=FACTS, gpu=gpu, study="a")
        node = stored.environment.nodes[0]
        node = node.model_copy(update={"gpu": node.gpu | {"uuid": uuid}})
        return stored.model_copy(
            update={"environment": stored.environment.model_copy(update={"nodes": (node,)})}
        )

    records = [
        *(timed(CELL, 1.0, uuid) for uuid in "abc"),
        timed(CELL, 1.0, "a", gpu="NVIDIA H100"),
        timed(control("matmul"), 5.0, "a"),
        timed(control("matmul"), 4.0, "b"),
    ]
    ceilings = [row["ceiling_tflops"] for row in rows(records, load_hardware())[:4]]
    assert ceilings == [
        pytest.approx(2 * 2048**3 / 5e9),
        pytest.approx(2 * 2048**3 / 4e9),
        pytest.approx(2 * 2048**3 / 4e9),
        None,
    ]
