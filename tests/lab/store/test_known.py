"""Cells that committed records have already."""

from pathlib import Path
from typing import Any

import pytest

from longca.lab.store.checks.known import known_cells, other_protocol
from longca.lab.store.export import export
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.lab.studies.outcome import Unsupported
from longca.lab.studies.record import Record
from tests.helpers.records import record

MEASURE = Measure(repeats=3, precision=0.005)


CELL = Cell(
    kind="kernel",
    kernel="sdpa",
    mask="causal",
    seqlen=1024,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=64,
    dtype="bf16",
    direction="bwd",
)


def measured(
    cell: Cell = CELL,
    *,
    duty: float | None = 0.5,
    asked: dict[str, Any] | None = None,
    num_samples: int = 3,
    **changes: Any,
) -> Record:
    """A record of a GPU."""
    made = record(cell, gpu="NVIDIA H100 80GB HBM3")
    assert made.samples is not None
    samples = made.samples.model_copy(
        update={
            "time_ms": ((1.0,) * num_samples,),
            "duty": duty,
            "sm_clock_mhz": (),
            "power_w": (),
            "temperature_c": (),
        }
    )
    changes |= {
        "samples": samples,
        "measure": asked if asked is not None else {"repeats": 3, "precision": 0.005},
    }
    return made.model_copy(update=changes)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (measured(), ""),
        (measured(method_version="another"), ""),
        (measured(duty=0.25), ""),
        (measured(duty=None), "of a GPU that did not rest"),
        (measured(duty=0.9), "of a GPU that rested less"),
        (measured(asked={"repeats": 2, "precision": 0.005}), "with fewer samples asked for"),
        (measured(asked={}, num_samples=2), "with fewer samples asked for"),
        (measured(asked={"repeats": 3, "precision": 0.01}), "with a coarser median asked for"),
        (measured(asked={"repeats": 3, "precision": 0}), "with a coarser median asked for"),
        (record(CELL, Unsupported(reason="no")), ""),
        (record(CELL, Unsupported(reason="no"), schema_version=2), "of an earlier longca"),
    ],
    ids=str,
)
def test_a_record_counts_if_it_is_of_the_protocol_that_is_asked_for(made: Record, reason: str):
    assert other_protocol(made, MEASURE) == reason


def test_without_rests_asked_none_are_needed():
    assert other_protocol(measured(duty=None), Measure(repeats=3, duty=1)) == ""


def test_repeats_and_play_offs_are_no_records_of_the_cell(tmp_path: Path):
    made = record(CELL, Unsupported(reason="no"))
    export([made.model_copy(update={"repeat": True})], tmp_path)
    known = known_cells([CELL], [tmp_path / "records.parquet"], lambda cell: MEASURE)
    assert not known.cells


def test_says_how_many_were_not_taken_and_why(tmp_path: Path):
    cells = [Cell(**CELL.model_dump() | {"seed": seed}) for seed in range(3)]
    records = [measured(cell, duty=duty) for cell, duty in zip(cells, (0.5, None, None), strict=True)]
    export(records, tmp_path)
    file = tmp_path / "records.parquet"
    sentence = known_cells(cells, [file], lambda cell: MEASURE).sentence(len(cells), [file])
    assert sentence == (
        f"1 of 3 cells are known from {file}; records of 2 cells were not taken: 2 of a GPU that did not rest"
    )
