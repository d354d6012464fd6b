"""The play-off on a CPU: real processes, real kernels, and kernels that fail among others."""

import io
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from longca.lab.bench.playoff.rounds import ratio_interval
from longca.lab.bench.run.method_version import method_versions
from longca.lab.bench.run.players import cells_of_cases, choose_players, due_playoffs, playoffs_of, unplayed
from longca.lab.bench.run.playoffs import PlayoffCounts
from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import run_cells
from longca.lab.bench.run.summary import Summary
from longca.lab.ranking import Measurement
from longca.lab.ranking.table import COLUMNS, counted, is_played, pairs_of, standings
from longca.lab.store.beside.playoffs import PlayoffStore
from longca.lab.store.cells import CellStore
from longca.lab.store.checks.known import known_cells
from longca.lab.store.export import export
from longca.lab.store.index import CellFacts
from longca.lab.store.load import load, load_columns
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.config import Config
from longca.lab.studies.playoff.repeats import RepeatRules, cases_with_twins
from longca.lab.studies.playoff.rules import PlayoffRules
from longca.lab.studies.record import Record
from longca.lab.studies.study import Study, load_study
from tests.helpers.bench.misbehaving import MEASURE, kernel_cell

pytestmark = pytest.mark.long

RULES = PlayoffRules(max_rounds=12, max_seconds=5.0, own_files=True)
STUDY = """
measure: {warmup: 1, repeats: 3, timeout_s: 60}
playoff: {max_rounds: 12, max_seconds: 5, own_files: true}
grids: [{kernel: [naive, quick, sdpa], mask: [causal, full], seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}]
"""  # noqa: E501


def play(pool, *kernels: str, **measure: float):
    return pool.play([kernel_cell(kernel) for kernel in kernels], MEASURE.model_copy(update=measure), RULES)


def statuses(players) -> list[str]:
    return [player.result.outcome.status for player in players]


@pytest.fixture
def run(tmp_path: Path, plugins, monkeypatch) -> Callable[..., Summary]:
    """A run of STUDY: `naive`, the same under the name `quick`, and `sdpa`."""
    (tmp_path / "three.yaml").write_text(STUDY)
    monkeypatch.setenv("LONGCA_LOCKS", str(tmp_path / "locks"))

    def start(
        study: Study | None = None, playoffs: str = "after", said: io.StringIO | None = None, **options
    ) -> Summary:
        study = study or load_study(str(tmp_path / "three.yaml"))
        return run_cells(
            study,
            options.pop("cells", study.cells()),
            Config(results=tmp_path, device="cpu", disturbed="keep"),
            progress=PlainProgress(said or io.StringIO()),
            playoffs=playoffs,
            **options,
        )

    return start


def test_a_run_plays_off_each_case_and_goes_on_where_it_stopped(run, tmp_path):
    said = io.StringIO()
    first = run(said=said)
    assert (first.playoffs.num_played, first.playoffs.num_kept, first.num_measured) == (2, 0, 6)
    assert "play-off 2/2 eta 0:00:00  " in said.getvalue()
    store = PlayoffStore(tmp_path / "three")
    own = CellStore(tmp_path / "three").read_all()[0]
    records, problems = store.read_all()
    assert (
        not problems
        and len(records) == 6
        and {record.cell_id for record in records} == {record.cell_id for record in own}
    )
    assert all(record.playoff is None and record.turns is None for record in own), (
        "cells keep records of their own"
    )
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.playoff, []).append(record)
    for of_case in by_id.values():
        assert {record.cell.kernel for record in of_case} == {"naive", "quick", "sdpa"}
        times = {record.cell.kernel: record.samples.time_ms[0] for record in of_case}
        low, high = ratio_interval(times["quick"], times["naive"])
        assert low < 1.1 and high > 0.9, "two names of one kernel tie"
        turns = sorted(turn for record in of_case for turn in record.turns.numbers)
        assert turns == list(range(3 * len(times["naive"]))), "calls alternated"
        assert all(
            record.accuracy.timed_calls == 2 and record.memory and record.samples.warmup == 1
            for record in of_case
        )

    again = run()
    assert (again.playoffs.num_played, again.playoffs.num_kept, again.num_measured) == (0, 2, 0)
    missing, damaged = store.folder.glob("*.jsonl")
    missing.unlink()
    damaged.write_bytes(damaged.read_bytes().replace(b'"warmup":1', b'"warmup":2', 1))
    said = io.StringIO()
    again = run(said=said, playoffs="only")
    assert again.playoffs.num_played == 2 and said.getvalue().count("Played off again: ") == 1
    assert run(playoffs="none").playoffs is None


def test_what_is_due_follows_from_players_and_method(run, tmp_path):
    study = load_study(str(tmp_path / "three.yaml"))
    run(study)
    store = PlayoffStore(tmp_path / "three")
    own, _ = CellStore(tmp_path / "three").read_all()
    facts = {record.cell_id: CellFacts.of(record) for record in own}
    device = own[0].environment.nodes[0].cpu
    playoffs, outside = playoffs_of(study.cells(), facts, study.playoff, device)
    assert len(playoffs) == 2 and not outside

    def versions_of(asked: Study) -> dict[str, str]:
        return method_versions(study.cells(), asked, asked.playoff)(device)

    versions = versions_of(study)
    assert due_playoffs(playoffs, store, versions) == []
    assert due_playoffs(playoffs, store, versions | {playoffs[0].players[0].cell_id: "other"}) == playoffs[:1]
    stricter = study.model_copy(update={"playoff": study.playoff.model_copy(update={"precision": 0.001})})
    assert due_playoffs(playoffs, store, versions_of(stricter)) == playoffs
    wider = study.model_copy(update={"playoff": study.playoff.model_copy(update={"first": 5})})
    assert versions_of(wider) == versions, "who plays has no part in a number"
    assert playoffs_of(study.cells(), facts, study.playoff, "another CPU") == ([], [])
    slower = {name: each._replace(time_ms=1e3) if each.time_ms else each for name, each in facts.items()}
    assert (
        len(
            playoffs_of(study.cells(), slower, study.playoff.model_copy(update={"mask": ("full",)}), device)[
                0
            ]
        )
        == 1
    )
    _, outside = playoffs_of(
        study.cells(), facts, study.playoff.model_copy(update={"own_files": False}), device
    )
    assert len(outside) == 2, "a kernel outside of the package keeps its case from being played off"


def test_cells_of_files_play_beside_those_of_the_run(run, tmp_path):
    """A campaign measures the kernels of a case in several sessions, on machines that are given back."""
    study = load_study(str(tmp_path / "three.yaml"))
    elsewhere, here = (
        [cell for cell in study.cells() if (cell.kernel == "sdpa") == is_here] for is_here in (False, True)
    )
    home: list[Record] = []

    def session(cells: list[Cell], **options) -> PlayoffCounts | None:
        """Measures on a machine that begins empty and is given back; its records come home."""
        export(home, tmp_path / "exported")
        file = tmp_path / "exported/records.parquet"
        known = known_cells(study.cells(), [file], study.measure_of) if home else None
        shutil.rmtree(tmp_path / "three", ignore_errors=True)
        playoffs = run(cells=cells, elsewhere=known, **options).playoffs
        home.extend(CellStore(tmp_path / "three").read_all()[0])
        home.extend(PlayoffStore(tmp_path / "three").read_all()[0])
        return playoffs

    session(elsewhere, playoffs="none")
    counts = session(here)
    assert (counts.num_played, counts.num_kept) == (2, 0)
    players = Counter(record.cell.kernel for record in home if record.playoff)
    assert players == {"naive": 2, "quick": 2, "sdpa": 2}
    counts = session([])
    assert (counts.num_played, counts.num_kept) == (0, 2)
    export(home, tmp_path / "exported")
    known = known_cells(study.cells(), [tmp_path / "exported/records.parquet"], study.measure_of)
    assert unplayed(known, study) == []
    fewer = known._replace(
        players={case: players - {here[0].cell_id} for case, players in known.players.items()}
    )
    assert [here[0] in playoff.players for playoff in unplayed(fewer, study)] == [True]
    home[:] = [record for record in home if not record.playoff]
    assert session([]).num_played == 2, "no cell is left to be measured, and the play-offs are"


def test_a_twin_is_a_repeat_of_the_relation_playoff_and_no_method(run, tmp_path):
    study = load_study(str(tmp_path / "three.yaml"))
    study = study.model_copy(update={"repeats": RepeatRules(share=0, least=0, twins=0.5)})
    first = run(study, repeats=True)
    assert (first.playoffs.num_played, len(first.playoffs.differences)) == (2, 1)
    loaded = load(tmp_path / "three")
    (twin,) = loaded.repeats
    assert len(loaded.playoffs) == 6 and twin.playoff in {record.playoff for record in loaded.playoffs}
    (player,) = (
        record
        for record in loaded.playoffs
        if (record.playoff, record.cell_id) == (twin.playoff, twin.cell_id)
    )
    assert player.turns.rounds == twin.turns.rounds and player.turns.numbers != twin.turns.numbers

    table = derived(loaded.all_records)
    assert is_played(table).sum() == 6 and counted(table).sum() == 6
    assert all(case.played_off and len(case.entries) == 3 for case in standings(table).values())
    rates = sorted(1e3 / median(record.samples.time_ms[0]) for record in (player, twin))
    whole = [
        pair
        for pair in pairs_of(table)
        if sorted((pair.first.rate, pair.second.rate)) == pytest.approx(rates)
    ]
    assert [pair.relation for pair in whole] == ["play-off"]
    rows, _ = load_columns([tmp_path / "three"], COLUMNS)
    assert is_played(rows).sum() == 6 and len(rows) == 13

    again = run(study, repeats=True)
    assert (again.playoffs.num_played, again.playoffs.num_kept) == (0, 2)
    assert not run(study, repeats=False, force=True).playoffs.differences, "no repeats, no twins"


def test_twins_are_drawn_by_the_seed_one_at_least_where_there_are_gpus():
    cases = [f"{number:016x}" for number in range(40)]
    rules = RepeatRules()
    chosen = cases_with_twins(cases, 0, 0, 1, rules, on_gpu=False)
    assert len(chosen) == 4 and chosen == cases_with_twins(cases[::-1], 0, 0, 1, rules, on_gpu=True)
    assert chosen != cases_with_twins(cases, 0, 0, 2, rules, on_gpu=False)
    few = cases[:3]
    assert [len(cases_with_twins(few, 0, 0, 1, rules, on_gpu=gpu)) for gpu in (True, False)] == [1, 0]
    assert cases_with_twins(few, 30, 3, 1, rules, on_gpu=True) == set(), "those of before have theirs"
    assert not cases_with_twins(few, 0, 0, 1, RepeatRules(twins=0), on_gpu=True)


def test_a_part_of_a_case_brings_its_other_methods_along_unless_it_is_a_job(tmp_path, plugins):
    (tmp_path / "three.yaml").write_text(STUDY)
    study = load_study(str(tmp_path / "three.yaml"))
    some = [cell for cell in study.cells() if cell.kernel == "sdpa" and cell.mask == "full"]
    assert {cell.mask for cell in cells_of_cases(study, some, whole=False)} == {"full"}
    assert (
        len(cells_of_cases(study, some, whole=False)) == 3 and cells_of_cases(study, some, whole=True) == []
    )
    assert {cell.mask for cell in cells_of_cases(study, study.cells()[:5], whole=True)} == {"causal"}
    assert len(cells_of_cases(study, study.cells(), whole=True)) == 6


def test_the_first_three_play_and_all_that_are_near_the_first():
    times = {
        kernel_cell(kernel): ms
        for kernel, ms in {
            "quick": 1.0,
            "naive": 1.01,
            "sdpa": 1.02,
            "flex": 1.05,
            "raiser": 1.06,
            "slow": 9.0,
        }.items()
    }

    def players(times, device, rules=None, rests=False) -> list[str]:
        rates = {cell: 1 / ms for cell, ms in times.items()}
        known = {cell: Measurement(rate, rate, rate, device, rests=rests) for cell, rate in rates.items()}
        return [cell.kernel for cell in choose_players(known, rules or PlayoffRules())]

    assert players(times, "NVIDIA H100 80GB HBM3") == ["quick", "naive", "sdpa", "flex"]
    tied = ["quick", "naive", "sdpa", "flex", "raiser"]
    assert players(times, "NVIDIA H200") == tied, "two H200s differ by more than 6 %: one process must tell"
    assert players({cell: ms**50 for cell, ms in times.items()}, "NVIDIA H200") == tied[:3]
    strict = PlayoffRules(within=0.0, first=2)
    near = {cell: 1 + 0.015 * index for index, cell in enumerate(times)}
    assert players(near, "NVIDIA H100 80GB HBM3", strict) == ["quick", "naive", "sdpa"]
    assert players(near, "NVIDIA H100 80GB HBM3", strict, rests=True) == ["quick", "naive"], (
        "a tie up to 1.8 %"
    )


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        ("play_raises", "error"),
        ("play_hungry", "oom"),
        ("play_killed", "error"),
        ("play_wrong", "incorrect"),
        ("raiser", "error"),
        ("quitter", "error"),
        ("hungry", "oom"),
    ],
)
def test_one_that_fails_leaves_and_the_rest_play_on(pool, kernel, status):
    players = play(pool, "naive", kernel, "quick")
    assert statuses(players) == ["ok", status, "ok"]
    assert players[1].turns is None and players[1].result.samples is None
    assert players[0].turns.num_players in (2, 3) and len(players[0].turns.numbers) >= 10
    assert statuses(play(pool, "naive", "quick")) == ["ok", "ok"], "the next case is played off as ever"


def test_one_that_hangs_is_stopped_and_the_rest_start_anew(pool):
    players = play(pool, "naive", "play_sleeps", "quick", timeout_s=1.0)
    assert statuses(players) == ["ok", "timeout", "ok"]


def test_where_nobody_is_left_to_play_against_there_is_no_time(pool):
    players = play(pool, "naive", "play_raises")
    assert statuses(players) == ["error", "error"] and players[0].result.outcome.type == "NoRival"


def test_without_room_for_all_the_first_plays_against_each_of_the_others(pool):
    players = play(pool, "room_a", "room_b", "room_c")
    assert statuses(players) == ["ok", "ok", "ok"]
    first, *others = (player.turns.rounds for player in players)
    assert set(others[0]).isdisjoint(others[1]) and sorted(first) == sorted(others[0] + others[1])
    samples = [player.result.samples.time_ms[0] for player in players]
    assert all(median(times) > 0 for times in samples) and len(samples[0]) == len(samples[1]) + len(
        samples[2]
    )
