"""Tests of what a choice between the two backward ways costs."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.band import dq_order
from benchmarks.band.dq_order import TIMES, Case, cases, main, table
from longca.masks import build_mask
from longca.masks.mask import Mask
from longca.ops.band.tables.backward_rule import AddOrder, preferred_dq_order
from tests.helpers.support import ROOT
from tools.table import read_records, write_records

FULL = build_mask("full", seqlen=32000)
WINDOW = build_mask("sliding_window", seqlen=8192)


def record(mask: Mask, last: float, first: float) -> dict[str, Any]:
    return {
        "mask": mask.name,
        "where": "8K",
        "heads": 64,
        "digest": mask.digest,
        "two kernels": 400.0,
        "from the last row": last,
        "from the first row": first,
        "machine": "a GPU",
    }


TWO = [Case("32000", FULL, 64, 8), Case("8K", WINDOW, 64, 8)]


def test_a_choice_loses_what_the_other_way_would_gain() -> None:
    gone = record(build_mask("full", seqlen=100), 1.0, 1.0)
    actual = table([record(FULL, 320.0, 200.0), record(WINDOW, 300.0, 500.0), gone], TWO).records
    names = ("full", 1, 1, 0), ("sliding_window", 1, 0, 1), ("all", 2, 1, 1)
    assert (
        tuple(
            (line["mask"], line["measured"], line["from the last row"], line["from the first row"])
            for line in actual
        )
        == names
    )
    assert [line["lost_most"] for line in actual] == pytest.approx([0.25, 0, 0.25])
    assert actual[-1]["lost_mean"] == pytest.approx(0.125)
    assert (actual[1]["from the first row, least"], actual[-1]["from the last row, most"]) == pytest.approx(
        (1.25, 0.8)
    )


def test_a_choice_of_heads_at_once_has_their_column() -> None:
    """The plan takes eight KV heads at once under `full` at 4K; else the column of its order counts."""
    mask = build_mask("full", seqlen=4096)
    entry = record(mask, 300.0, 350.0) | {"bwd from first s1 k8 r1": 500.0, "bwd": 600.0}
    (actual, _), (other, _) = (
        table([line], [Case("4K", mask, 64, 8)]).records for line in (entry, record(mask, 300.0, 350.0))
    )
    assert actual["lost_most"] == 0 and other["lost_most"] == pytest.approx(400 / 350 - 1)
    assert actual["from the first row"] == other["from the first row"] == 1


def test_an_earlier_run_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dq_order, "cases", lambda *_: TWO)
    write_records(tmp_path, TIMES, [record(FULL, 440.0, 300.0)])
    assert main(["--read", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "a GPU" in capsys.readouterr().out
    assert (tmp_path / "out" / f"{TIMES}.csv").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "there is no GPU here"),
        (["--read", "nowhere"], f"no {TIMES}.csv in nowhere"),
        (["--also", "bwd,bwd up"], "'bwd up' is no way to gradients"),
    ],
)
def test_nothing_to_say_ends_in_one_line(
    options: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert why in capsys.readouterr().err


def test_cases_are_of_both_ways_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dq_order, "RANKS", ((2, 8192),))
    all_cases = cases()
    assert len({case.key for case in all_cases}) == len(all_cases)
    assert {preferred_dq_order(case.mask, case.num_kv_heads) for case in all_cases} == {
        None,
        AddOrder.FROM_LAST,
        AddOrder.FROM_FIRST,
    }
    of_ranks = ["rank" in case.where for case in all_cases]
    assert any(of_ranks) and of_ranks == sorted(of_ranks), "whole sequences first"


def test_with_heads_cases_are_whole_sequences_of_these() -> None:
    all_cases = cases([(8, 1), (24, 3)])
    assert {(case.num_q_heads, case.num_kv_heads) for case in all_cases} == {(8, 1), (24, 3)}
    assert not any("rank" in case.where for case in all_cases)


def test_the_rule_loses_little_with_few_heads() -> None:
    """The masks measured with one, two or three KV heads on an H100. At 16K and two KV heads, predicted times
    choose; the file lacks some of their ways."""
    records = read_records(ROOT / "reports/h100/few-heads", TIMES)
    *of_masks, of_all = table(records, cases([(8, 1), (16, 2), (24, 3)])).records
    assert of_all["measured"] == len(records) == 107
    assert of_all["lost_mean"] < 0.006 and of_all["lost_most"] < 0.09
    assert max(line["lost_mean"] for line in of_masks) < 0.021


def test_whole_sequences_of_given_lengths_come_shortest_first():
    cases = dq_order.cases([(16, 2)], [1500, 4096])
    assert {case.mask.seqlen_q for case in cases} == {1500, 4096} and {
        case.num_kv_heads for case in cases
    } == {2}
    assert [case.mask.seqlen_q for case in cases] == sorted(case.mask.seqlen_q for case in cases)
