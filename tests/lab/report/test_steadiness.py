"""The page's sentences about its samples."""

from typing import Any

from longca.lab.report.tables import steadiness
from longca.lab.store.table import derived
from longca.lab.studies.outcome import Unsupported
from longca.lab.studies.record import Record, Samples
from tests.helpers.compare import cell
from tests.helpers.records import record

STEADY = (1.0,) * 12
RISING = tuple(1.0 + 0.01 * number for number in range(12))


def timed(times: tuple[float, ...], seqlen: int, **fields: Any) -> Record:
    samples = Samples(
        time_ms=(times,), warmup=9, timer="cuda_event", **{"duty": 0.5, "steady": True, **fields}
    )
    return record(cell(seqlen=seqlen), gpu="NVIDIA H100", samples=samples)


def test_drift_rests_precision_and_clocks_are_told():
    records = [
        timed(STEADY, 1024),
        timed(RISING, 2048),
        timed(RISING[::-1], 4096, steady=False),
        timed((1.0,) * 5, 8192),
        record(cell(seqlen=16384), Unsupported(reason="no"), gpu="NVIDIA H100"),
    ]
    texts = steadiness(derived(records))
    drift, precision, rests, clocks = texts.sentences
    assert drift.startswith("2 of 3 results drift: ") and "unknown for 1 more" in drift
    assert "in 1 of 3 results with six samples" in precision and clocks.startswith("In 1 of 4 results")
    assert rests == "GPUs rested after each call, busy for at most 50 % of the time."
    assert {drifting.text for drifting in texts.drifting} == {"+7.6 %", "-7.6 %"}


def test_records_without_rests_are_not_mixed_in_silence():
    old = timed(STEADY, 1024, duty=None, steady=None)
    new = timed(STEADY, 2048)
    assert "1 of 2 cells by the protocol with rests: the other one is never ranked" in " ".join(
        steadiness(derived([old, new])).sentences
    )
    only_old = " ".join(steadiness(derived([old])).sentences)
    assert "without rests" in only_old and "not steady" not in only_old
    few = steadiness(derived([timed((1.0,) * 5, 1024, duty=None, steady=None)]))
    assert few.sentences[0].startswith("The drift of all results is unknown") and not few.drifting


def test_a_cpu_neither_rests_nor_is_told_to():
    samples = Samples(time_ms=(STEADY,), warmup=1, timer="monotonic")
    assert "rest" not in " ".join(steadiness(derived([record(cell(), samples=samples)])).sentences)
