"""Records that came home, merged into a committed file."""

from pathlib import Path
from typing import Any

import pytest

from longca.lab.store.export import export
from longca.lab.store.load import Loaded, load
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Failed, OutOfMemory, Unavailable, Unsupported
from longca.lab.studies.record import Record
from tests.helpers.records import record
from tools.merge_records import main, merge

GPU = "NVIDIA H100 80GB HBM3"
CELLS = [
    Cell(
        kind="kernel",
        kernel=kernel,
        mask="causal",
        seqlen=1024,
        num_q_heads=2,
        num_kv_heads=1,
        head_dim=64,
        dtype="bf16",
        direction="fwd",
    )
    for kernel in ("naive", "sdpa", "flex")
]
IDS = {cell.cell_id for cell in CELLS}


def on(
    day: int,
    cell: Cell = CELLS[0],
    outcome: Any = None,
    *,
    rests: bool | None = None,
    gpu: str = GPU,
    **changes: Any,
) -> Record:
    """A record of that day of November."""
    made = record(cell, outcome, gpu=gpu, started_at=f"2026-11-{day:02}T10:00:00Z", run_id=f"of day {day}")
    if rests is not None:
        assert made.samples is not None
        changes["samples"] = made.samples.model_copy(update={"duty": 0.5 if rests else None})
    return made.model_copy(update=changes)


def own(*records: Record) -> Loaded:
    return Loaded(list(records), [])


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        (on(1, rests=False), on(2, rests=True), "after"),
        (on(2, rests=False), on(1, rests=True), "after"),
        (on(1, rests=True), on(2, rests=False), "before"),
        (on(1, rests=True), on(2, rests=True), "after"),
        (on(2, rests=True), on(1, rests=True), "before"),
        (on(1, rests=True), on(2, outcome=OutOfMemory(requested_bytes=1, where="fwd")), "after"),
        (on(1, rests=False), on(2, outcome=Unsupported(reason="no")), "after"),
        (on(2, rests=False), on(1, outcome=Unsupported(reason="no")), "before"),
        (on(1, rests=True), on(2, outcome=Failed(type="E", message="")), "before"),
        (on(1, outcome=Failed(type="E", message="")), on(2, rests=False), "after"),
        (on(1, rests=False), on(2, outcome=Unavailable(reason="no package")), "before"),
        (
            on(1, outcome=Unavailable(reason="no package")),
            on(2, outcome=Failed(type="E", message="")),
            "after",
        ),
    ],
    ids=str,
)
def test_the_better_record_of_a_cell_stays(before: Record, after: Record, stays: str):
    assert merge(own(before), own(after), IDS).records == [{"before": before, "after": after}[stays]]


def test_what_has_no_successor_stays():
    old = on(1, CELLS[0], rests=False)
    new = on(2, CELLS[1], rests=True)
    merged = merge(own(old), own(new), IDS)
    assert merged.records == [old, new] and merged.counts == {"added": 1}


def test_cells_that_the_study_does_not_have_are_named():
    old = on(1, CELLS[0], rests=False)
    new = on(2, CELLS[1], rests=True)
    merged = merge(own(old), own(new), {CELLS[2].cell_id})
    assert merged.records == [old] and merged.not_in_study == {"naive": 1} and merged.left_out == {"sdpa": 1}


def test_the_last_play_off_of_a_case_stays_with_all_its_players():
    def playoff(day: int, *cells: Cell) -> list[Record]:
        return [on(day, cell, rests=True, playoff=f"{day:016x}") for cell in cells]

    old = Loaded([], [], playoffs=playoff(1, *CELLS))
    new = Loaded([], [], playoffs=playoff(2, *CELLS[:2]))
    assert merge(old, new, IDS).records == new.playoffs
    assert merge(new, old, IDS).records == new.playoffs


def test_the_twin_of_a_player_stays_once():
    player, twin = (on(1, rests=True, playoff=f"{1:016x}", repeat=repeat) for repeat in (False, True))
    merged = merge(own(), Loaded([], [], playoffs=[player], repeats=[twin]), IDS)
    assert merged.records == [player, twin]


def test_repeats_stay_by_gpu_and_protocol():
    first, again, rested = (
        on(day, rests=rests, repeat=True) for day, rests in ((1, False), (2, False), (3, True))
    )
    merged = merge(Loaded([], [], repeats=[first]), Loaded([], [], repeats=[again, rested]), IDS)
    assert merged.records == [again, rested] and merged.counts == {"repeats replaced": 1, "repeats added": 1}


def test_writes_the_file_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study = tmp_path / "tiny.yaml"
    study.write_text(
        "grids: [{kernel: [naive, sdpa, flex], mask: causal, seqlen: 1024, heads: '2:1', head_dim: 64, "
        "direction: fwd}]\n"
    )
    old = on(1, rests=False)
    new = on(2, rests=True)
    export([old, on(1, CELLS[1], rests=False)], tmp_path / "old")
    export([new], tmp_path / "home")
    file = tmp_path / "old/records.parquet"
    home = str(tmp_path / "home")
    assert main([str(file), home, "--study", str(study), "--dry-run"]) == 0 and old in load(file).records
    assert main([str(file), home, "--study", str(study)]) == 0
    assert "1  replaced: ok without rests → ok with rests" in capsys.readouterr().out
    assert {made.cell_id for made in load(file).records} == {
        cell.cell_id for cell in CELLS[:2]
    } and new in load(file).records


def test_records_without_rests_that_are_replaced_stay_for_repeats(tmp_path: Path):
    file = tmp_path / "tiny.parquet"
    study = tmp_path / "tiny.yaml"
    study.write_text(
        "grids: [{kernel: [naive, sdpa, flex], mask: causal, seqlen: 1024, heads: '2:1', head_dim: 64, "
        "direction: fwd}]\n"
    )
    first, second = (on(day, CELLS[day], rests=False) for day in (1, 2))
    export([first, second], tmp_path / "old")
    (tmp_path / "old/records.parquet").rename(file)
    for day, cell in ((3, CELLS[1]), (4, CELLS[2])):
        export([on(day, cell, rests=True)], tmp_path / f"home {day}")
        assert main([str(file), str(tmp_path / f"home {day}"), "--study", str(study)]) == 0
    kept = load(tmp_path / "rested/tiny_without_rests.parquet").records
    assert sorted(kept, key=lambda made: made.started_at) == [first, second]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    export([on(1, rests=False)], tmp_path / "old")
    export([on(2, gpu="NVIDIA H200", rests=True)], tmp_path / "other")
    file = str(tmp_path / "old/records.parquet")
    for home, said in (
        (tmp_path / "other", "Records are of NVIDIA H200"),
        (tmp_path / "nowhere.parquet", "There is no file"),
        (tmp_path / "empty", "There are no records at home"),
    ):
        before = Path(file).read_bytes()
        assert main([file, str(home), "--study", "quick"]) == 2
        printed = capsys.readouterr().err
        assert said in printed and len(printed.splitlines()) == 1 and Path(file).read_bytes() == before
