"""Tests of the comparison of the time model with records."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.cp.model import compared, main, planned_alike, table

RING = "a ring of 2; tokens: level-1024; messages by copy engines, into symmetric memory"
LINE = {
    "mask": "causal",
    "world": "2",
    "tokens": "8192",
    "heads": "64:8",
    "kernel": "band",
    "strategy": "ring_p2p",
    "how": "a ring of 2, level-1024",
    "fwd_modelled_tflops": "440.0",
    "bwd_modelled_tflops": "380.0",
}


def measured(direction: str, tflops: float, notes: str = RING, **other: object) -> dict[str, object]:
    return {
        "status": "ok",
        "kind": "cp",
        "seed": 0,
        "strategy": "ring_p2p",
        "strategy_params": "",
        "kernel": "band",
        "mask": "causal",
        "world": 2,
        "seqlen": 16384,
        "num_q_heads": 64,
        "num_kv_heads": 8,
        "mask_density_asked": None,
        "direction": direction,
        "tflops_per_device": tflops,
        "notes": notes,
    } | other


@pytest.mark.parametrize(
    ("how", "notes", "alike"),
    [
        ("a ring of 2, level-1024", RING, True),
        ("a ring of 2, level-2048", RING, False),
        ("a ring both ways of 2, level-1024", RING, False),
        (
            "a ring of 2, heads among 2, in chunks of 8, 24, zigzag",
            "a ring of 2, heads among 2; in chunks of 8, 24; tokens: zigzag",
            True,
        ),
        (
            "heads among 2, in chunks of 16, 16, contiguous",
            "heads in chunks of 8, 24; messages by copy engines",
            True,
        ),
    ],
)
def test_plans_are_told_apart(how: str, notes: str, alike: bool):
    assert planned_alike(how, notes) == alike


def test_lines_are_held_against_records_of_the_same_plan():
    records = [
        measured("fwd", 400.0),
        measured("bwd", 400.0),
        measured("fwd", 1.0, seqlen=8192),
        measured("fwd", 1.0, seed=1),
        measured("fwd", 1.0, num_kv_heads=64),
        measured("fwd", 1.0, mask_density_asked=0.5),
        measured("fwd", 1.0, strategy_params="heads=2"),
        measured("bwd", 1.0, kernel="fa3"),
        measured("bwd", 1.0, status="timeout"),
    ]
    actual = compared(
        [LINE, LINE | {"strategy": "alone", "fwd_modelled_tflops": "", "bwd_modelled_tflops": ""}],
        pd.DataFrame(records),
    )
    assert [(entry["direction"], entry["ratio"]) for entry in actual] == [
        ("fwd", pytest.approx(1.1)),
        ("bwd", pytest.approx(0.95)),
    ]
    shown = table(actual)
    assert "Of 2 cells the model is off by 8 % in the median, 10 % at most" in shown.caption
    assert shown.rows == (("2 × 8K", "causal", "–", "–", "1.10 / 0.95", "–", "–"),)
    other = pd.DataFrame(
        [measured("fwd", 400.0, notes="a ring of 2; tokens: zigzag"), measured("bwd", 400.0)]
    )
    assert table(compared([LINE], other)).rows[0][4] == "– / 0.95"


def test_without_lines_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), str(tmp_path / "none.parquet")])
    assert "no cp_virtual.csv in" in capsys.readouterr().err
