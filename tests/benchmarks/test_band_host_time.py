"""The benchmark of the host's time, with the stand-in for the driver: Triton's own launchers run down to
it."""

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.support import ROOT

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here"),
    pytest.mark.slow,
]


def test_calls_start_kernels_and_descriptors(tmp_path: Path) -> None:
    """The portable kernels compile quickest: forward starts one kernel, backward three. Their TMA descriptors
    are kept from before."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.band.host_time",
        "--calls",
        "20",
        "--only",
        "portable",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "band_host_time.csv").open(newline="") as file:
        actual = {line["call"]: line for line in csv.DictReader(file)}
    assert len(actual) == 5 and all(float(line["us"]) > 0 for line in actual.values())
    if actual["forward"]["started"]:  # known where there is no GPU
        assert [
            (actual[name]["started"], actual[name]["descriptors"]) for name in ("forward", "band_backward")
        ] == [("1", "0"), ("3", "0")]
