"""The README's map and the table of `longca.attention` take play-offs of committed records, and keep
protocols apart."""

from pathlib import Path

import pytest

from longca.lab.store.export import export
from longca.lab.studies.cell import Cell
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Samples
from tests.helpers.records import record
from tools import fastest, heat_map

MS = {"band": 1.00, "fa3": 1.01, "sdpa": 3.0}
PLAYED_MS = {"band": 1.10, "fa3": 1.00}


def timed(kernel, mask, direction, ms, duty=None, **fields):
    cell = Cell(
        kind="kernel",
        kernel=kernel,
        mask=mask,
        seqlen=heat_map.SEQLEN,
        num_q_heads=heat_map.Q_HEADS,
        num_kv_heads=heat_map.KV_HEADS,
        head_dim=128,
        dtype="bf16",
        direction=direction,
    )
    samples = Samples(time_ms=((ms,) * 10,), warmup=1, timer="cuda_event", duty=duty)
    made = record(cell, gpu="NVIDIA H100 80GB HBM3", samples=samples, **fields)
    (node,) = made.environment.nodes
    node = node.model_copy(update={"gpu": {**node.gpu, "compute_capability": "9.0"}})
    return made.model_copy(update={"environment": made.environment.model_copy(update={"nodes": (node,)})})


def table(folder: Path, name: str, records) -> Path:
    export(records, folder / name)
    return (folder / name / "records.parquet").rename(folder / f"{name}.parquet")


CASES = [(mask, direction) for mask in ("causal", "full") for direction in ("fwd", "bwd")]


@pytest.fixture
def dense(tmp_path) -> Path:
    cells = [timed(kernel, *case, ms, study="dense") for case in CASES for kernel, ms in MS.items()]
    return table(tmp_path, "dense", cells)


def playoffs(cases, played=PLAYED_MS, start=0):
    return [
        timed(
            kernel,
            *case,
            ms,
            study="played",
            playoff=f"{number:016x}",
            turns=Turns(num_players=2, numbers=tuple(range(index, 20, 2)), ending="decided"),
        )
        for number, case in enumerate(cases, start)
        for index, (kernel, ms) in enumerate(played.items())
    ]


def quicker(dense: Path, way: str) -> list[dict[str, float]]:
    """The kernels ahead of `band` in the table of `longca.attention`, for each kind of mask."""
    kinds = fastest.content([dense])[way].values()
    return [leads for heads in kinds for lengths in heads.values() for leads in lengths.values()]


def test_playoffs_beside_the_records_name_winners(dense):
    assert "No case was played off" in heat_map.finding(dense).sentence()
    kinds = quicker(dense, "fwd")
    assert kinds and not any(kinds), "1 % without a play-off is nothing"
    table(dense.parent, "played", playoffs(CASES))
    finding = heat_map.finding(dense)
    assert "`fa3` is the fastest in all 4 cases by a play-off (" in finding.sentence()
    assert finding.sentence().startswith("**`fa3` is the fastest under every mask.**")
    assert {case.winner for case in finding.standings.values()} == {"fa3"} and finding.num_cells == 12
    assert quicker(dense, "fwd") == quicker(dense, fastest.TRAINING) == [{"fa3": 1.1}] * len(kinds)


def test_own_playoffs_decide_before_those_of_other_tables(tmp_path):
    """Pages and `longca choose` know a study's own alone."""
    own = [timed(kernel, *case, ms, study="dense") for case in CASES for kernel, ms in MS.items()]
    dense = table(tmp_path, "dense", [*own, *playoffs(CASES)])
    alone = heat_map.finding(dense).sentence()
    table(tmp_path, "beside", playoffs(CASES, {"band": 1.00, "sdpa": 0.50}, start=9))
    assert heat_map.finding(dense).sentence() == alone


def test_where_some_cases_were_played_off_the_sentence_says_what_came_of_it(dense):
    table(dense.parent, "played", playoffs(CASES[:1]))
    assert "1 of them was played off: `fa3` won 1. " in heat_map.finding(dense).sentence()


def test_records_of_another_protocol_leave_squares_empty(tmp_path):
    """One case was measured anew, with rests, but for sdpa."""
    rested = {(kernel, CASES[0]): 0.5 for kernel in ("band", "fa3")}
    cells = [
        timed(kernel, *case, ms, rested.get((kernel, case))) for case in CASES for kernel, ms in MS.items()
    ]
    finding = heat_map.finding(table(tmp_path, "dense", cells))
    assert (
        list(finding.standings[CASES[0]].other_protocol) == ["sdpa"]
        and finding.share("sdpa", *CASES[0]) is None
    )
    assert finding.share("sdpa", *CASES[1]) == pytest.approx(1 / 3)
    assert "1 of 4 cases was measured by the protocol with rests" in finding.sentence()
    assert "or was measured by another protocol than the others (1 square)" in finding.caption()
    assert (
        "n = 12 cells" in finding.caption()
        and "2 of 12 cells were measured by the protocol with rests." in finding.caption()
    )
