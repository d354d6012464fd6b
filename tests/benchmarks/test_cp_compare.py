"""Tests of the comparison of strategies, at toy size on two CPU processes."""

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.cp.compare import main, same_area
from longca.lab.studies.cell import Cell
from longca.lab.studies.masks import cell_mask

pytestmark = pytest.mark.long


@pytest.mark.usefixtures("ranks")
def test_it_checks_and_times_and_says_what_is_refused(tmp_path: Path) -> None:
    arguments = [
        "--device",
        "cpu",
        "--ranks",
        "2",
        "--tokens",
        "96",
        "--heads",
        "4:2",
        "--head-dim",
        "16",
        "--masks",
        "causal",
        "--strategies",
        "ring_p2p,ulysses",
        "--kernels",
        "naive,sdpa",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    lines = {
        (line["kernel"], line["strategy"]): line for line in csv.DictReader((tmp_path / "cp_try.csv").open())
    }
    assert list(lines) == [
        (kernel, strategy) for kernel in ("naive", "sdpa") for strategy in ("alone", "ring_p2p", "ulysses")
    ]
    assert "no LSE" in lines["sdpa", "ring_p2p"]["reason"]
    for key, line in lines.items():
        if key != ("sdpa", "ring_p2p"):
            assert not line["reason"]
            assert float(line["fwd_tflops"]) > 0 and float(line["bwd_tflops"]) > 0
            assert 0 < float(line["error"]) < 1
            assert (float(line["fwd_moved_mb"]) > 0) == (key[1] != "alone")
    header, _, *rows = [
        line.strip("| ").split(" | ")
        for line in (tmp_path / "cp_try.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert header == ["mask", "kernel", "baseline, TFLOP/s", "ring_p2p", "ulysses"]
    assert [row[:2] for row in rows] == [["causal", "naive"], ["causal", "sdpa"]]
    assert rows[1][3] == "–" and "%" in rows[1][4]


@pytest.mark.slow  # tests/cp/strategies/test_yunchang.py asks the strategy itself
def test_a_package_that_is_not_here_is_named(tmp_path: Path) -> None:
    if find_spec("yunchang"):
        pytest.skip("it is here")
    arguments = [
        "--device",
        "cpu",
        "--ranks",
        "2",
        "--tokens",
        "96",
        "--heads",
        "4:2",
        "--head-dim",
        "16",
        "--masks",
        "causal",
        "--strategies",
        "yunchang",
        "--kernels",
        "naive",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    *_, line = csv.DictReader((tmp_path / "cp_try.csv").open())
    assert line["reason"] == "module 'yunchang' is not installed"


@pytest.mark.parametrize("mask", ["full", "causal_document"])
def test_the_baseline_gets_a_ranks_share_of_the_area(mask: str) -> None:
    cell = Cell(
        kind="kernel",
        kernel="naive",
        mask=mask,
        corpus="pile" if "document" in mask else None,
        seqlen=8192,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        dtype="bf16",
        direction="bwd",
    )
    seqlen = same_area(cell, 4)
    assert seqlen < cell.seqlen
    assert 0.9 < cell_mask(cell.model_copy(update={"seqlen": seqlen})).area * 4 / cell_mask(cell).area < 1.3


@pytest.mark.parametrize("weights", ["0", "1:0:1", "-1:2", "1:", "one"])
def test_chunks_without_a_weight_are_refused(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--chunks={weights}"])
    assert f"argument --chunks: invalid weights value: '{weights}'" in capsys.readouterr().err
