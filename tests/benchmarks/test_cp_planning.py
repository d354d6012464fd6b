"""The benchmark of plans: small masks, few ranks."""

import csv
from pathlib import Path

import pytest


def test_each_strategy_and_one_gpu_have_a_row(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from benchmarks.cp import planning

    arguments = ["--ranks", "2", "--tokens", "1K", "--masks", "causal_document,causal", "--draws", "1"]
    planning.main([*arguments, "--rounds", "1", "--strategies", "auto,usp,one GPU", "--out", str(tmp_path)])
    with (tmp_path / "cp_planning.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["strategy"], row["mask"]) for row in rows] == [
        (strategy, mask) for strategy in ("auto", "usp", "one GPU") for mask in ("causal_document", "causal")
    ]
    assert all(float(row["mean_ms"]) > 0 for row in rows)
