"""The order of the study's grid, in calls of ten minutes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import campaign
from benchmarks.campaign import PART_MINUTES, Campaign, Stage, parts_that_fit, progress, wall_minutes
from longca.core.errors import UserError
from longca.lab.store.export import export
from longca.lab.studies.playoff.turns import Turns
from longca.lab.studies.record import Record
from longca.lab.studies.select import Selection
from longca.lab.studies.study import load_study
from tests.helpers.records import record

STUDY = """title: "A small study"
measure: {repeats: 10}
grids:
  - {kernel: [fa2, fa3, flex], mask: [full, causal, causal_document], corpus: pile, seqlen: [8K, 32K], heads:
    "64:8", seed: [0, 1]}
  - {kernel: [fa2, naive], mask: full, seqlen: 32K, heads: "64:64"}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(STUDY)
    stages = Stage("first", str(file), 32 << 10, (64, 8), (0,)), Stage("rest", str(file))
    monkeypatch.setattr(campaign, "CAMPAIGNS", {"small": Campaign("H100 SXM", stages)})
    return str(file)


def _chosen(command: str, study: str) -> list[str]:
    """Ids of the cells that a part's command chooses."""
    words = shlex.split(command)
    options = {
        name: words[words.index(f"--{name}") + 1] for name in Selection.model_fields if f"--{name}" in words
    }
    return [cell.cell_id for cell in Selection(**options).apply(load_study(study).cells())]


def test_every_cell_that_runs_is_in_a_part_and_the_first_stage_comes_first(
    study: str, tmp_path: Path
) -> None:
    first, rest = progress("small", tmp_path)
    assert {cell.seqlen for cell in first.cells} == {32 << 10} and {cell.seed for cell in first.cells} == {0}
    assert not {cell.cell_id for cell in first.cells} & {cell.cell_id for cell in rest.cells}
    assert len(first.cells) + len(rest.cells) == len(load_study(study).cells())
    for stage in (first, rest):
        chosen = {cell_id for part in stage.parts.values() for cell_id in _chosen(part.command, study)}
        assert {cell.cell_id for cell in stage.left} <= chosen
        assert all(minutes <= PART_MINUTES for minutes in stage.minutes.values())


def test_a_case_is_in_one_part(study: str, tmp_path: Path) -> None:
    for stage in progress("small", tmp_path):
        parts = [set(_chosen(part.command, study)) for part in stage.parts.values()]
        for kernel in ("fa2", "fa3"):
            for cell in stage.left:
                if cell.kernel == kernel:
                    case = {
                        other.cell_id
                        for other in stage.left
                        if other.model_copy(update={"kernel": kernel}) == cell
                    }
                    assert any(case <= part for part in parts)


def rested(made: Record) -> Record:
    """The record as of a GPU that rested after each call."""
    assert made.samples is not None
    return made.model_copy(update={"samples": made.samples.model_copy(update={"duty": 0.5})})


def test_what_is_measured_is_not_measured_again(study: str, tmp_path: Path) -> None:
    before, _ = progress("small", tmp_path)
    cell, old = before.left[:2]
    records = [
        rested(record(cell, gpu="NVIDIA H100 80GB HBM3")),
        record(old, gpu="NVIDIA H100 80GB HBM3"),
    ]  # the second one without rests
    export(records, tmp_path / "made")
    (tmp_path / "small").mkdir()
    assert "--known" not in next(iter(before.parts.values())).command
    (tmp_path / "made/records.parquet").rename(tmp_path / "small/small.parquet")
    now, _ = progress("small", tmp_path)
    assert "--known" in next(iter(now.parts.values())).command
    assert now.known == {cell.cell_id} and len(now.left) == len(before.left) - 1


def in_turn(made: Record, place: int, num_players: int) -> Record:
    """The record as that of a player."""
    assert made.samples is not None
    numbers = tuple(place + num_players * number for number in range(len(made.samples.time_ms[0])))
    turns = Turns(num_players=num_players, numbers=numbers, ending="rounds")
    return made.model_copy(update={"playoff": "0" * 16, "turns": turns})


def test_measured_cells_are_played_off_once(study: str, tmp_path: Path) -> None:
    """A part of play-offs is left where no cell is. With the play-off of all players it is done."""
    cells = [
        cell
        for cell in load_study(study).cells()
        if (cell.mask, cell.seqlen, cell.num_kv_heads, cell.seed) == ("causal", 32 << 10, 8, 0)
    ]
    own = [rested(record(cell, gpu="NVIDIA H100 80GB HBM3")) for cell in cells]
    forward = [made for made in own if made.cell.direction == "fwd"]
    played = [in_turn(made, place, len(forward)) for place, made in enumerate(forward)]
    (tmp_path / "small").mkdir()

    def directions_to_play(records: list[Record]) -> list[str]:
        export(records, tmp_path / "made")
        (tmp_path / "made/records.parquet").rename(tmp_path / "small/small.parquet")
        first, _ = progress("small", tmp_path)
        assert not [cell for cell in first.left if cell in cells]
        chosen = {cell_id for part in first.parts.values() for cell_id in _chosen(part.command, study)}
        assert {player.cell_id for playoff in first.unplayed for player in playoff.players} <= chosen
        return sorted(playoff.players[0].direction for playoff in first.unplayed)

    assert directions_to_play(own) == ["bwd", "fwd"]
    assert directions_to_play([*own, *played]) == ["bwd"]
    assert directions_to_play([*own, *played[1:]]) == ["bwd", "fwd"]


def test_takes_as_many_parts_as_fit(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "PART_MINUTES", 1.0)
    every = [name for stage in progress("small") for name in stage.parts]
    assert (
        list(parts_that_fit("small", 1.0, 1)) == every[:1]
        and list(parts_that_fit("small", 1.0, 2)) == every[:2]
    )
    assert list(parts_that_fit("small", 1e6, 4)) == every
    assert list(parts_that_fit("small", 1e6, 4, lambda name, part: name == every[1])) == [
        every[0],
        *every[2:],
    ]
    with pytest.raises(UserError, match="campaign"):
        parts_that_fit("large", 1.0, 1)


@pytest.mark.parametrize("num_lines", [1, 20_000])
def test_it_ends_quietly_where_its_reader_leaves(num_lines: int) -> None:
    """`python -m benchmarks.campaign | head`: few lines fail at the end, many while they are written."""
    program = (
        "import sys; from longca.lab.cli.terminal import until_reader_leaves\n"
        f"with until_reader_leaves():\n    [print('x' * 80) for _ in range({num_lines})]; sys.exit(0)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert "with until_reader_leaves():\n        sys.exit(main(" in Path(campaign.__file__).read_text()


def test_parts_side_by_side() -> None:
    assert [wall_minutes((4, 3, 2, 1), num) for num in (1, 2, 4)] == [10, 5, 4]
    assert wall_minutes((), 2) == 0
