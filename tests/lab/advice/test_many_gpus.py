"""Predictions for many GPUs: the committed ones are today's, claims are judged by them, and they are
marked."""

import subprocess
import sys

import pytest

from longca.lab.advice.many_gpus import (
    CLAIMS,
    FACTORS,
    MASKS,
    STRATEGIES,
    WORLDS,
    PredictedCell,
    load,
    make,
    save,
    table,
    verdicts,
)
from tests.helpers.support import ROOT
from tools import many_gpus

pytestmark = pytest.mark.long


def test_the_committed_cells_are_those_of_the_code():
    known = {
        (entry.strategy, entry.mask, entry.world, entry.direction, entry.network_factor): entry
        for entry in load()
    }
    assert len(known) == len(WORLDS) * len(MASKS) * len(STRATEGIES) * 2 * len(FACTORS)
    again = list(make([8], ["causal_document"]))
    assert len(again) == len(STRATEGIES) * 2 * len(FACTORS)
    for entry in again:
        assert known[
            entry.strategy, entry.mask, entry.world, entry.direction, entry.network_factor
        ].tflops == pytest.approx(entry.tflops, rel=1e-3), "run `python -m tools.many_gpus --again`"
    drawn = [entry for entry in known.values() if entry.draws and entry.world <= 96]
    assert {entry.draws for entry in drawn if "document" in entry.mask} == {8} and {
        entry.draws for entry in drawn if entry.mask == "full"
    } == {1}
    firsts = sum(
        entry.first_in or 0
        for entry in drawn
        if (entry.mask, entry.world, entry.direction) == ("causal_document", 96, "fwd")
    )
    assert firsts >= 8, "each draw has a first"
    assert all(
        entry.tflops_low < entry.tflops < entry.tflops_high
        for entry in known.values()
        if entry.tflops and entry.tflops_low and entry.tflops_high
    )


def test_the_page_follows_from_them():
    cells = load()
    assert many_gpus.PAGE.read_text(encoding="utf-8") == many_gpus.content(cells), (
        "run `python -m tools.many_gpus`"
    )


def test_a_file_is_read_as_it_was_written(tmp_path):
    cells = [
        PredictedCell("usp", "full", 8, "fwd", 0.6, "ok", "", ms=1.5, tflops=500.0),
        PredictedCell("ulysses", "full", 96, "fwd", 1, "unsupported", "no"),
    ]
    save(cells, tmp_path / "cells.csv")
    assert load(tmp_path / "cells.csv") == cells


def cells_of(strategy: str, direction: str, factor: float, tflops: float) -> list[PredictedCell]:
    """One of each mask."""
    return [
        PredictedCell(strategy, mask, 64, direction, factor, "ok", "", ms=1.0, tflops=tflops, straggler=0.0)
        for mask in MASKS
    ]


def test_a_verdict_says_whether_it_hangs_on_the_network():
    def judged(slow: float) -> str:
        """LoongTrain is ahead forward, and level backward; with the slow network it has so many TFLOP/s
        forward."""
        cells = [
            cell
            for factor in FACTORS
            for way in ("fwd", "bwd")
            for strategy in ("usp", "loongtrain")
            for cell in cells_of(
                strategy,
                way,
                factor,
                400 if strategy == "usp" or way == "bwd" else slow if factor == min(FACTORS) else 450,
            )
        ]
        return verdicts(cells)[18].text

    assert judged(450).startswith("holds (predicted, with 0.6 and 1.25 times the rate between nodes, too)")
    assert judged(380).startswith(
        "holds (predicted, but contradicted with 0.6 and 1.25 times the rate between nodes)"
    )


def test_predictions_never_pass_for_measurements():
    frame = table(load())
    assert (
        set(frame.study) == {"predicted"}
        and frame.cell_id.str.startswith("predicted ").all()
        and frame.git_sha.isna().all()
    )
    assert set(verdicts()) == set(CLAIMS) and all(
        "(predicted, " in verdict.text for verdict in verdicts().values()
    )


@pytest.mark.long
def test_the_command_tells_them_and_refuses_others():
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "longca", "claims", "--predicted", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    done = run("18")
    refused = run("3")
    assert (
        done.returncode == 0
        and "Predicted, not measured" in done.stdout
        and all(len(line) <= 80 for line in done.stdout.splitlines())
    )
    assert (
        refused.returncode == 2
        and refused.stderr.count("\n") == 1
        and "Nothing is predicted of claim '3'" in refused.stderr
    )
