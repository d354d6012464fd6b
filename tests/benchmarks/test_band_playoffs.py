"""`benchmarks.band.playoffs`: the first kernels of play-offs beside those of another program."""

import pandas as pd
import pytest

from benchmarks.band.compare import Case
from benchmarks.band.playoffs import answers, both, main, summary
from benchmarks.band.tables import Record
from longca.lab.ranking.resolution import Resolutions

PLAYED = {"band": 10.0, "fa3": 10.5, "fa4": 12.0}


def _records(
    times: dict[str, float], mask: str = "full", playoff: str = "a", started_at: str = "1"
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "cell_id": [Case(mask, 8192, (64, 8), "fwd", ()).cell(kernel).cell_id for kernel in times],
            "status": "ok",
            "started_at": started_at,
            "playoff": playoff,
            "playoff_rounds": [(0.0, 1.0)] * len(times),
            "time_ms_median": list(times.values()),
        }
    )


def _other(times: dict[str, float], mask: str = "full") -> list[Record]:
    return [Record(8192, mask, 0.0, "64:8", "fwd", kernel, time_ms) for kernel, time_ms in times.items()]


def test_cells_apart_and_older_playoffs_do_not_count() -> None:
    records = pd.concat(
        [
            _records({"band": 1.0, "fa3": 99.0}, playoff=""),
            _records({"band": 2.0, "fa3": 98.0, "fa4": 1.0}, playoff="old", started_at="0"),
            _records(PLAYED),
        ]
    )
    rows = both(records, _other({"band": 11.0, "fa3": 11.1, "flex": 5.0}))
    assert rows[["kernel", "playoff_ms", "compare_ms"]].values.tolist() == [
        ["band", 10.0, 11.0],
        ["fa3", 10.5, 11.1],
    ]


def test_a_case_with_one_common_player_says_nothing() -> None:
    assert both(_records(PLAYED), _other({"band": 11.0, "flex": 5.0})).empty


def test_the_summary_counts_clear_and_close_cases_and_names_what_differs() -> None:
    records = pd.concat([_records(PLAYED), _records({"band": 3.0, "fa3": 3.01}, "causal", "b")])
    others = [*_other({"band": 12.0, "fa3": 11.0}), *_other({"band": 3.0, "fa3": 3.1}, "causal")]
    text = summary(answers(both(records, others)), 0.01)
    assert text.splitlines() == [
        "0 of 1 leads above 1 % have the same first kernel in both programs, and 1 of the other 1 cases.",
        "8K full 64:8 fwd: band by 5.0 % in the play-off; the other program finds fa3 first, by 9.1 %",
    ]


def test_committed_records_agree_on_all_leads_that_two_machines_tell_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The two programs ran on different H200s."""
    width = Resolutions.known().of("NVIDIA H200", "model", rests=True).log_ratio
    assert main(["reports/h200/h200-dense.parquet", "reports/h200", "--lead", str(width)]) == 0
    same, clear = map(int, capsys.readouterr().out.partition(" leads")[0].split(" of "))
    assert same == clear >= 20
