"""The tables at the end of a run, from the records of a study."""

import pytest

from longca.bench.run.overview import failures, finding, outcome_table, rate_tables
from longca.bench.run.scores import Score, Scoreboard
from longca.core.record import STATUSES
from longca.store.hardware import Hardware
from longca.store.view import View
from tests.records import quick_study


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    return Scoreboard([Score.of(record) for record in quick_study()])


def test_the_best_of_each_row_is_marked_and_is_the_quickest(board):
    tables = {table.title: table for table in rate_tables(board, 200)}
    assert set(tables) == {"GFLOP/s, forward, S=2K", "GFLOP/s, backward, S=2K", "GFLOP/s, forward, 2 ranks, S=1K",
                           "GFLOP/s, backward, 2 ranks, S=1K"}
    table = tables["GFLOP/s, forward, S=2K"]
    assert table.columns == ["mask", "flex", "naive", "sdpa"]
    row = next(row for row in table.rows if row[0] == "causal")
    rates = {method: float(str(text).strip("*")) for method, text in zip(table.columns[1:], row[1:], strict=True)}
    best = max(rates, key=rates.__getitem__)
    assert [text for text in row if "*" in str(text)] == [row[table.columns.index(best)]]
    records = [record for record in quick_study() if (record.cell.kernel, record.cell.kind, record.cell.mask, record.cell.direction,
                                                      record.cell.seqlen) == (best, "kernel", "causal", "fwd", 2048)]
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
    assert finding(board).startswith(f"{first} has the best median in {wins.count(first)} of {len(contested)} cases")
    assert finding(Scoreboard()) == ""
    of_title = {table.title: table.caption for table in rate_tables(board, 200)}
    assert of_title["GFLOP/s, backward, S=2K"].endswith("; also measured: S=512,1K, shown by `longca report`.")
    assert "also measured" not in of_title["GFLOP/s, backward, 2 ranks, S=1K"], "no other length ran"
    captions = [table.caption for table in rate_tables(board, 200) if table.caption]
    assert len(captions) == len(set(captions)) and captions[-1].startswith("* the best")


def test_outcomes_are_counted_and_failures_are_named(board):
    table = outcome_table(board)
    counted = {row[0]: dict(zip(table.columns[1:-1], row[1:-1], strict=True)) for row in table.rows}
    records = quick_study()
    assert sum(sum(counts.values()) for counts in counted.values()) == len(records)
    found = [status for status in STATUSES if any(record.outcome.status == status for record in records)]
    assert counted["naive"]["timeout"] == 1 and counted["sdpa"]["wrong"] == 1 and len(table.columns) == len(found) + 2
    assert [score.status for score in failures(board)] == ["incorrect", "implausible", "error", "timeout"]


def test_shares_are_of_the_same_problem_alone(board):
    of_row = {row["method"]: row for row in board.rows()
              if (row["mask"], row["direction"], row["seqlen"], row["kind"]) == ("causal", "fwd", 1024, "kernel")}
    best = min(of_row[method]["time_ms"] for method in ("naive", "sdpa", "flex"))
    for row in of_row.values():
        assert row["share_of_best"] == pytest.approx(best / row["time_ms"])
    assert all(row["share_of_best"] is None for row in board.rows() if row["kernel"] == "matmul")
