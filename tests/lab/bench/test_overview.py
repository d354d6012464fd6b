"""The tables at the end of a run, from the records of a study."""

import re
from dataclasses import replace

import pytest

from longca.core.hardware import Hardware
from longca.lab.bench.run.overview import failures, finding, outcome_table, rate_tables
from longca.lab.bench.run.scores import Score, Scoreboard
from longca.lab.store.index import CellFacts
from longca.lab.store.view import View
from longca.lab.studies.outcome import STATUSES
from tests.helpers.bench.misbehaving import kernel_cell
from tests.helpers.records import quick_study, record


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    return Scoreboard([Score.of(record) for record in quick_study()])


def test_the_best_of_each_row_is_marked_and_is_the_quickest(board):
    tables = {table.title: table for table in rate_tables(board, 200)}
    assert set(tables) == {
        "GFLOP/s, forward, S=2K",
        "GFLOP/s, backward, S=2K",
        "GFLOP/s, forward, 2 ranks, S=1K",
        "GFLOP/s, backward, 2 ranks, S=1K",
    }
    table = tables["GFLOP/s, forward, S=2K"]
    assert table.columns == ["mask", "flex", "naive", "sdpa"]
    row = next(row for row in table.rows if row[0] == "causal")
    rates = {
        method: float(str(text).strip("*")) for method, text in zip(table.columns[1:], row[1:], strict=True)
    }
    best = max(rates, key=rates.__getitem__)
    assert [text for text in row if "*" in str(text)] == [row[table.columns.index(best)]]
    records = [
        record
        for record in quick_study()
        if (record.cell.kernel, record.cell.kind, record.cell.mask, record.cell.direction, record.cell.seqlen)
        == (best, "kernel", "causal", "fwd", 2048)
    ]
    view = View(records[0], Hardware())
    assert rates[best] == pytest.approx(1e3 * view.tflops(view.median_ms), rel=0.01)


def test_methods_that_do_not_fit_go_into_further_tables(board):
    tables = [table for table in rate_tables(board, 60) if table.title == "GFLOP/s, forward, S=2K"]
    assert [table.columns[1:] for table in tables] == [["flex", "naive"], ["sdpa"]]


def test_the_finding_counts_who_is_first_and_the_caption_stands_once(board):
    cases: dict[str, list[Score]] = {}
    for score in board.scores:
        if score.is_ranked:
            cases.setdefault(score.problem, []).append(score)
    contested = [scores for scores in cases.values() if len(scores) > 1]
    wins = [min(scores, key=lambda score: score.time_ms or 0).cell.method for scores in contested]
    first = max(set(wins), key=wins.count)
    match = re.fullmatch(
        r"On Example CPU @ 2.1 GHz: (\w+) leads on (\d+) of (\d+) cases, (\w+) on (\d+); "
        r"on (\d+) no method leads alone, against 1 to 2 others, by up to 4.0×.",
        finding(board),
    )
    assert match and match[1] == first and match[4] in wins
    (most, total, others, ties) = map(int, match.group(2, 3, 5, 6))
    assert (
        most + others + ties == total == len(contested)
        and most <= wins.count(first)
        and others <= wins.count(match[4])
    )
    assert finding(Scoreboard()) == ""
    of_title = {table.title: table.caption for table in rate_tables(board, 200)}
    assert of_title["GFLOP/s, backward, S=2K"].endswith(
        "; also measured: S=512,1K, shown by `longca report`."
    )
    assert "also measured" not in of_title["GFLOP/s, backward, 2 ranks, S=1K"], "no other length ran"
    captions = [table.caption for table in rate_tables(board, 200) if table.caption]
    assert len(captions) == len(set(captions)) and captions[-1].startswith("* the best")


def test_outcomes_are_counted_and_failures_are_named(board):
    table = outcome_table(board)
    counted = {row[0]: dict(zip(table.columns[1:-1], row[1:-1], strict=True)) for row in table.rows}
    records = quick_study()
    assert sum(sum(counts.values()) for counts in counted.values()) == len(records)
    actual = [status for status in STATUSES if any(record.outcome.status == status for record in records)]
    assert (
        counted["naive"]["timeout"] == 1
        and counted["sdpa"]["wrong"] == 1
        and len(table.columns) == len(actual) + 2
    )
    assert [score.status for score in failures(board)] == ["incorrect", "implausible", "error", "timeout"]


def test_shares_are_of_the_same_problem_alone(board):
    of_row = {
        row["method"]: row
        for row in board.rows()
        if (row["mask"], row["direction"], row["seqlen"], row["kind"]) == ("causal", "fwd", 1024, "kernel")
    }
    best = min(of_row[method]["time_ms"] for method in ("naive", "sdpa", "flex"))
    for row in of_row.values():
        assert row["share_of_best"] == pytest.approx(best / row["time_ms"])
    assert all(row["share_of_best"] is None for row in board.rows() if row["kernel"] == "matmul")


def _board(**rates: float) -> Scoreboard:
    """One case on a GPU: kernel → TFLOP/s."""
    made = (
        record(kernel_cell(kernel, 8192), tflops=rate, gpu="NVIDIA H200") for kernel, rate in rates.items()
    )
    return Scoreboard([Score.of(entry) for entry in made])


def test_methods_that_are_not_told_apart_share_the_mark_and_are_a_tie():
    board = _board(fa3=500, flex=495, sdpa=300)
    (table,) = rate_tables(board, 200)
    assert [("*" in str(text)) for text in table.rows[0][1:]] == [True, True, False], table.columns
    assert finding(board) == "On H200: No method leads alone on the one case, against 2 others."
    best, flex, sdpa = sorted(board.scores, key=lambda score: score.time_ms or 0)
    assert (
        board.numbers(flex).endswith(" tie")
        and not board.numbers(best).endswith("tie")
        and not board.is_tied(sdpa)
    )
    assert [row["tied_with_best"] for row in board.rows()].count(True) == 1
    alone = _board(fa3=500, sdpa=300)
    assert "fa3 leads on the one case, against 1 other" in finding(alone) and "*" in str(
        rate_tables(alone, 200)[0].rows[0][1]
    )


def test_scores_that_are_remembered_have_the_standings_of_their_records():
    """An index has no samples, but the interval of their median."""
    records = quick_study()
    live = Scoreboard(map(Score.of, records))
    kept = Scoreboard(Score.known(record.cell, CellFacts.of(record)) for record in records)
    assert [case.leaders for case in live.standings().values()] == [
        case.leaders for case in kept.standings().values()
    ]
    assert finding(live) == finding(kept) and rate_tables(live, 200) == rate_tables(kept, 200)


def test_a_play_off_decides_its_case():
    board = _board(fa3=500, flex=490, sdpa=300)
    for score, rate in zip(tuple(board.scores), (450, 520), strict=False):
        assert score.measured is not None
        board.add(
            replace(
                score,
                measured=replace(
                    score.measured, rate=rate, low=rate, high=rate, playoff="p", times_ms=(1e3 / rate,) * 9
                ),
            )
        )
    (case,) = board.standings().values()
    assert [entry.method for entry in case.entries] == ["flex", "fa3", "sdpa"] and case.winner == "flex"
    assert finding(board) == "On H200: flex is fastest on the one case, against 2 others, by up to 1.2×."


def test_gpus_of_two_models_are_never_in_one_case():
    records = [
        record(kernel_cell(kernel, 8192), tflops=rate, gpu=gpu)
        for kernel, rate, gpu in (
            ("fa3", 500, "NVIDIA H200"),
            ("flex", 900, "NVIDIA H100 80GB HBM3"),
            ("sdpa", 300, "NVIDIA H200"),
        )
    ]
    board = Scoreboard(map(Score.of, records))
    assert finding(board).startswith("On H200: fa3 leads on the one case") and "H100" not in finding(board)
    assert {table.title.split(", ")[2] for table in rate_tables(board, 200)} == {"H100", "H200"}
