"""The derived table's rows as measurements and standings."""

from dataclasses import replace

import pytest

from longca.core.hardware import Hardware
from longca.lab.bench.run.scores import Score
from longca.lab.ranking.record import measurement_of
from longca.lab.ranking.table import counted, measurements, points, standings
from longca.lab.store.index import CellFacts
from longca.lab.store.table import derived
from longca.lab.store.view import View
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import OutOfMemory, Unavailable
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Samples
from tests.helpers.records import record

H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"


def cell(kernel="sdpa", **fields):
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": "causal",
            "seqlen": 1024,
            "num_q_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 64,
            "dtype": "bf16",
            "direction": "fwd",
            **fields,
        }
    )


def timed(kernel, *times, gpu=H100, outcome=None, study="s", started_at="2026-11-20T10:00:00Z", **fields):
    samples = None if outcome else Samples(time_ms=(times,), warmup=1, timer="cuda_event")
    return record(
        cell(kernel, **fields),
        outcome,
        gpu=gpu,
        study=study,
        started_at=started_at,
        **({"samples": samples} if samples else {}),
    )


def test_a_row_is_a_measurement_with_its_device_and_run():
    table = derived(
        [timed("sdpa", 1.0, 1.1, 1.2), timed("naive", outcome=OutOfMemory(requested_bytes=None, where="fwd"))]
    )
    entry = next(measurement for measurement in measurements(table) if measurement)
    assert measurements(table).count(None) == 1
    assert (entry.device, entry.unit, entry.run, entry.playoff) == (
        H100,
        "GPU-00000000",
        "20261120-100000-7f3a",
        "",
    )
    assert entry.low / entry.rate == pytest.approx(1.1 / 1.2) and entry.high / entry.rate == pytest.approx(
        1.1
    )


def test_a_row_and_its_record_know_whether_the_gpu_rested():
    """So do the facts that are remembered of a record."""
    rested = timed("sdpa", 1.0, 1.0)
    rested = rested.model_copy(update={"samples": rested.samples.model_copy(update={"duty": 0.5})})
    records = [rested, timed("flex", 1.0, 1.0)]
    for entry in (
        measurements(derived(records)),
        [Score.of(made).measurement for made in records],
        [Score.known(made.cell, CellFacts.of(made)).measurement for made in records],
    ):
        assert [each.rests for each in entry] == [True, False]


def test_a_record_its_row_and_what_is_remembered_of_it_are_one_measurement():
    first = timed("sdpa", 1.0, 1.1, 1.5, seed=3, corpus="pile", mask="causal_document")
    turns = Turns(num_players=2, numbers=(0, 3, 4), ending="decided")
    played = first.model_copy(update={"playoff": f"{7:016x}", "turns": turns})
    rested = first.model_copy(update={"samples": first.samples.model_copy(update={"duty": 0.5})})
    table = derived([first, played, rested])
    for made, row in zip((first, played, rested), measurements(table), strict=True):
        assert measurement_of(View(made, Hardware()), row.rate) == row
    for made in (first, rested):
        known = Score.known(made.cell, CellFacts.of(made)).measurement
        (row,) = measurements(derived([made]), "tflops_per_device")
        assert replace(known, times_ms=()) == replace(
            row, times_ms=(), low=known.low, high=known.high, rate=known.rate
        )
        assert (known.rate, known.low, known.high) == pytest.approx((row.rate, row.low, row.high))


def test_cases_are_of_one_model_and_say_who_could_not_and_who_was_not_asked():
    rows = [
        timed("sdpa", 1.0, 1.0),
        timed("flex", 2.0, 2.0),
        timed("naive", outcome=OutOfMemory(requested_bytes=None, where="fwd")),
        timed("fa3", outcome=Unavailable(reason="not installed")),
        timed("fa4", 1.0, 1.0, seqlen=2048),
        timed("sdpa", 1.0, 1.0, gpu=H200),
    ]
    standing = standings(derived(rows))
    (case,) = (entry for key, entry in standing.items() if key[0] == H100 and entry.first.method == "sdpa")
    assert [entry.method for entry in case.entries] == ["sdpa", "flex"] and case.could_not == {"naive": "oom"}
    assert case.not_asked == ("fa3", "fa4") and len(standing) == 3


def test_of_repeats_one_counts():
    """The study with most methods, then the newest that nothing disturbed."""
    rows = [
        timed("sdpa", 1.0, study="a"),
        timed("sdpa", 9.0, study="b"),
        timed("flex", 2.0, study="a"),
        timed("flex", 3.0, study="a", started_at="2026-11-20T11:00:00Z"),
        timed("naive", 4.0, study="b", seqlen=2048),
    ]
    table = derived(rows)
    assert table.time_ms_median[counted(table)].tolist() == [1.0, 3.0, 4.0]
    assert [
        round(1 / measurement.rate / measurement.times_ms[0], 6)
        for measurement in points(table, ["seqlen"])[1024, "sdpa"].measurements
    ] != []


def test_rows_of_a_playoff_rank_and_stand_for_no_cell():
    table = derived(
        [timed("sdpa", 1.0), timed("flex", 2.0), timed("sdpa", *[1.5] * 10), timed("flex", *[1.4] * 10)]
    )
    table["playoff"] = ["p" if count == 10 else "" for count in table.num_samples]
    assert counted(table).sum() == 2
    (case,) = standings(table).values()
    assert case.winner == "flex" and case.entries[1].share == pytest.approx(1.4 / 1.5)
    assert not next(iter(standings(table[table.playoff == ""]).values())).played_off
