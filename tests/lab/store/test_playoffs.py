"""Records of play-offs beside those of the grid: whole or not at all, carried along, and never counted as
cells."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

import longca
from longca.lab.store.beside.playoffs import PlayoffStore
from longca.lab.store.cells import CellStore, UnusableFile
from longca.lab.store.export import export
from longca.lab.store.load import load, load_columns
from longca.lab.studies.playoff.case import case_id, may_play, playoff_id
from longca.lab.studies.playoff.rules import PlayoffRules
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Record
from longca.lab.studies.study import Study
from tests.helpers.records import quick_study


@pytest.fixture(scope="module")
def own() -> list[Record]:
    """The cells of one case."""
    records = [
        record for record in quick_study() if record.samples and may_play(record.cell) and record.work is None
    ]
    case = case_id(records[0].cell, "")
    actual = [record for record in records if case_id(record.cell, "") == case]
    assert len(actual) > 1
    return actual


@pytest.fixture(scope="module")
def played(own) -> list[Record]:
    identity = playoff_id(case_id(own[0].cell, ""), "run")
    num_samples = len(own[0].samples.time_ms[0])
    num_players = len(own)
    turns = [
        Turns(
            num_players=num_players,
            numbers=tuple(range(place, num_players * num_samples, num_players)),
            ending="decided",
        )
        for place in range(num_players)
    ]
    return [
        Record.model_validate({**record.model_dump(), "playoff": identity, "turns": of_player.model_dump()})
        for record, of_player in zip(own, turns, strict=True)
    ]


@pytest.fixture
def folder(own, played, tmp_path) -> Path:
    for record in own:
        CellStore(tmp_path / "quick").write(record)
    PlayoffStore(tmp_path / "quick").write("0" * 16, played)
    return tmp_path / "quick"


def test_a_play_off_is_read_as_it_was_written(folder, own, played):
    assert PlayoffStore(folder).read("0" * 16) == played and PlayoffStore(folder).read("1" * 16) == []
    assert CellStore(folder).read(own[0].cell_id) == own[0], "it takes the place of no cell"
    loaded = load(folder)
    assert sorted(loaded.records, key=lambda record: record.cell_id) == sorted(
        own, key=lambda record: record.cell_id
    )
    assert loaded.playoffs == played and not loaded.problems


def test_a_damaged_one_is_named_and_not_used_in_parts(folder):
    store = PlayoffStore(folder)
    path = store.path("0" * 16)
    before = store.digest()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    assert isinstance(store.read("0" * 16), UnusableFile) and store.digest() != before
    loaded = load(folder)
    assert not loaded.playoffs and [problem.path for problem in loaded.problems] == [path]


def test_files_of_records_carry_it_along(folder, own, played, tmp_path):
    paths = export(load(folder).all_records, tmp_path / "out")
    for path in paths[::2]:  # .parquet and .json
        loaded = load(path)
        assert (
            len(loaded.records) == len(own)
            and loaded.playoffs
            and {record.playoff for record in loaded.playoffs} == {played[0].playoff}
        )
    assert len(load(folder, paths[0]).playoffs) == len(played), "one that stands in two sources counts once"
    rounds = pq.read_table(paths[0], columns=["playoff", "playoff_rounds"]).to_pylist()
    assert [row["playoff_rounds"] for row in rounds if row["playoff"]] == [
        [float(number) for number in range(len(own[0].samples.time_ms[0]))]
    ] * len(played)


def test_only_who_asks_for_it_sees_it(folder, own, played):
    assert len(load_columns([folder], ["cell_id"])[0]) == len(own)
    assert len(load_columns([folder], ["cell_id", "playoff"])[0]) == len(own) + len(played)
    assert len(longca.load(folder)) == len(own)
    whole = longca.load(folder, playoffs=True)
    assert len(whole) == len(own) + len(played) and set(whole.playoff) == {"", played[0].playoff}


def test_a_record_of_the_grid_has_no_word_of_it(own):
    assert (
        b"playoff" not in own[0].model_dump_json().encode()
        and b"turns" not in own[0].model_dump_json().encode()
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"turns": None}, "have turns"),
        ({"playoff": None}, "have turns"),
        ({"turns": {"num_players": 2, "numbers": (0,), "ending": "decided"}}, "1 turns"),
        ({"turns": {"num_players": 2, "numbers": (3, 1), "ending": "decided"}}, "must ascend"),
    ],
)
def test_a_record_that_contradicts_itself_is_none(played, changes, why):
    with pytest.raises(ValidationError, match=why):
        Record.model_validate({**played[0].model_dump(), **changes})


def test_a_study_switches_it():
    grids = [{"kernel": "naive", "mask": "full", "seqlen": 16, "heads": "1:1"}]
    assert Study(grids=grids).playoff == PlayoffRules() == Study(grids=grids, playoff=True).playoff
    assert Study(grids=grids, playoff=False).playoff is None
    some = Study(grids=grids, playoff={"mask": "full", "seqlen": "8K", "max_seconds": 1}).playoff
    assert some.mask == ("full",) and some.seqlen == (8192,) and some.max_seconds == 1
    for wrong, why in (
        ({"mask": "ful"}, "full"),
        ({"min_rounds": 20, "max_rounds": 10}, "less than"),
        ({"rounds": 3}, "rounds"),
    ):
        with pytest.raises(ValidationError, match=why):
            Study(grids=grids, playoff=wrong)
