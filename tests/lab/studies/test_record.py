"""Records: what must go together, and that they come back from JSON as they went."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from longca.lab.studies.cell import Cell
from longca.lab.studies.record import (
    SCHEMA_VERSION,
    STATUSES,
    Accuracy,
    Environment,
    Failed,
    Implausible,
    Incorrect,
    MaskFacts,
    Memory,
    Node,
    Ok,
    Outcome,
    OutOfMemory,
    Record,
    Samples,
    Software,
    Source,
    TimedOut,
    Unavailable,
    Unsupported,
)

CELL = Cell(
    kind="kernel",
    kernel="sdpa",
    mask="causal",
    mask_params={"share": 1.0, "compat": False},
    seqlen=64,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=16,
    dtype="fp32",
    direction="bwd",
)
SAMPLES = Samples(
    time_ms=((1.5, 1.25), (0.1, 0.3)),
    warmup=1,
    timer="monotonic",
    sm_clock_mhz=(1980.0, 1975.0),
    stopped="time",
)
ACCURACY = Accuracy(
    reference="float64",
    scope="all",
    relative={"out": 1e-7, "dq": math.nan},
    budget={"out": 1e-6, "dq": math.inf},
)
OUTCOMES: list[Any] = [
    Ok(),
    Unsupported(reason="no backward"),
    Unavailable(reason="not installed"),
    OutOfMemory(requested_bytes=None, where="fwd"),
    OutOfMemory(requested_bytes=1 << 40, where="prepare"),
    Incorrect(reason="dq is NaN"),
    Implausible(reason="too fast"),
    Failed(type="ValueError", message="x", log="a\nb"),
    TimedOut(seconds=60.0),
]


def record(outcome: Outcome, **changes: Any) -> Record:
    """A record in which everything goes together, but for the changes."""
    fields: dict[str, Any] = {
        "cell_id": CELL.cell_id,
        "cell": CELL,
        "study": "tiny",
        "run_id": "r1",
        "method_version": "abc",
        "outcome": outcome,
        "started_at": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
    }
    if outcome.status in ("ok", "incorrect"):
        fields["accuracy"] = ACCURACY
    if outcome.status == "ok":
        fields["samples"] = SAMPLES
    return Record(**fields | changes)


def test_every_status_has_an_outcome():
    assert {outcome.status for outcome in OUTCOMES} == set(STATUSES)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.status)
def test_round_trip(outcome: Outcome):
    full = record(
        outcome,
        memory=Memory(peak_bytes=(1,), absolute_peak_bytes=(2,), source="resident_set"),
        costs={"plan_ms": 0.5},
        notes=("a note",),
        mask=MaskFacts(
            digest="d",
            area=2080,
            num_groups=1,
            num_bands=1,
            drawn={"window": 4, "share": 0.5, "name": "x", "compat": True},
        ),
        environment=Environment(
            nodes=(
                Node(
                    hostname="h", os="o", cpu="c", num_cores=2, memory_bytes=8, gpu={"name": "g", "mig": None}
                ),
            ),
            software=Software(python="3.11", packages={"numpy": "2"}, env={"OMP_NUM_THREADS": "1"}),
            source=Source(version="0.1.0", git_sha=None, git_dirty=None),
        ),
    )
    text = full.model_dump_json()
    back = Record.model_validate_json(text)
    assert repr(back) == repr(full)  # by repr, for NaN equals nothing
    assert back.cell.cell_id == full.cell_id
    assert type(back.outcome) is type(outcome)
    assert back.model_dump_json() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    ("outcome", "changes", "message"),
    [
        (Ok(), {"cell_id": "0" * 16}, f"cell_id is {'0' * 16}, its cell gives {CELL.cell_id}"),
        (Ok(), {"samples": None}, "no timing without a passed check"),
        (Ok(), {"accuracy": None}, "no timing without a passed check"),
        (Incorrect(reason="x"), {"accuracy": None}, "an incorrect record needs its errors"),
        (Incorrect(reason="x"), {"samples": SAMPLES}, "a record that is incorrect has no samples"),
        (TimedOut(seconds=1), {"samples": SAMPLES}, "a record that is timeout has no samples"),
        (Unsupported(reason="x"), {"samples": SAMPLES}, "a record that is unsupported has no samples"),
        (Ok(), {"schema_version": SCHEMA_VERSION + 1}, "schema_version"),
        (Ok(), {"tflops": 3.0}, "Extra inputs are not permitted"),
        (Ok(), {"seconds": "soon"}, "seconds"),
    ],
)
def test_what_does_not_go_together(outcome: Outcome, changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        record(outcome, **changes)


@pytest.mark.parametrize(
    "outcome", [{"status": "slow"}, {}, {"status": "oom"}, {"status": "ok", "reason": "x"}, "ok", None]
)
def test_outcomes_that_are_none(outcome: Any):
    data = json.loads(record(Ok()).model_dump_json()) | {"outcome": outcome}
    with pytest.raises(ValidationError, match="outcome"):
        Record.model_validate(data)


@pytest.mark.parametrize("length", [0, 1, 100, -1, -30])
def test_a_truncated_record_does_not_validate(length: int):
    with pytest.raises(ValidationError, match="Invalid JSON"):
        Record.model_validate_json(record(Ok()).model_dump_json()[:length])


def test_a_changed_cell_is_noticed():
    data = json.loads(record(Ok()).model_dump_json())
    data["cell"]["seqlen"] = 128
    with pytest.raises(ValidationError, match="cell_id is"):
        Record.model_validate(data)
