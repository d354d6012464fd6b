"""Tests of the timing of messages, at toy size on two CPU processes."""

import csv
from pathlib import Path

import pytest

from benchmarks.cp.hops import main


@pytest.mark.usefixtures("ranks")
def test_it_times_both_ways_and_says_which_one_fell_back(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--ranks", "2", "--megabytes", "0.5,1", "--out", str(tmp_path)]) == 0
    lines = list(csv.DictReader((tmp_path / "hops.csv").open()))
    assert [(line["messages"], float(line["megabytes"])) for line in lines] == [
        (messages, size) for messages in ("nccl", "symmetric") for size in (0.5, 1.0)
    ]
    for line in lines:
        assert float(line["gb_per_s"]) == pytest.approx(float(line["megabytes"]) / float(line["time_ms"]))
        assert ("symmetric memory is that of GPUs" in line["how"]) == (line["messages"] == "symmetric")
