"""Tests of the comparison of band attention and of its tables, on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.band import plan_costs as band_plan
from benchmarks.band.compare import cases, main, parse
from benchmarks.band.tables import OURS, Record, beside_best, read, targets, wide
from longca.core.plugin import Registry
from longca.ops.band.config import BandKernel, TileConfig, choose_tiles
from tools.table import read_records

CAUSAL = Record(32768, "causal", 0.0, "64:8", "fwd", "band", 1.0, 0.01, 520.0)
FULL = replace(CAUSAL, mask="full")
BLOCKS = replace(CAUSAL, mask="block_sparse_uniform", density=0.1, heads="64:64", direction="bwd")


def test_every_mask_meets_every_rival() -> None:
    todo = list(cases(parse([])))
    static = [case for case in todo if not case.params]
    assert len(static) == 12 * 2 * 2
    assert all(
        set(case.kernels) == {"band", "band_atomic", "flex", "flex_flash", "cudnn_flex"} for case in static
    )
    blocks = [case for case in todo if case.params]
    assert {case.heads for case in blocks} == {(64, 8), (64, 64)} and {
        case.params["density"] for case in blocks
    } == {0.1, 0.3, 0.5, 0.8}
    assert all(set(case.kernels) == {"band", "vsa", "flashinfer", "fa2_sparse", "flex"} for case in blocks)
    assert all(case.cell(OURS).mask == case.mask for case in todo)


def test_tables() -> None:
    flex = [
        replace(CAUSAL, kernel="flex", tflops=400.0),
        replace(FULL, kernel="flex", tflops=325.0),
        replace(BLOCKS, kernel="vsa", tflops=650.0),
        replace(CAUSAL, kernel="cudnn_flex", tflops=None, reason="gone"),
    ]
    records = [CAUSAL, FULL, BLOCKS, *flex]
    rows = wide(records).rows
    assert rows[0] == ("32K", "causal", "64:8", "fwd", "520", "–", "400 (1.30 ×)", "–")
    assert rows[2] == ("32K", "block_sparse_uniform 0.1", "64:64", "bwd", "520", "–", "–", "650 (0.80 ×)")
    assert targets(records).rows == (
        ("band", "flex", "32K", "fwd", "≥ 1.3 × (each mask)", "1.30 ×", "causal", "1.44 ×", "yes"),
        (
            "band",
            "vsa, blocks of 64, MHA",
            "32K",
            "bwd",
            "≥ 1.0 × (each density)",
            "0.80 ×",
            "block_sparse_uniform 0.1",
            "0.80 ×",
            "no",
        ),
    )


def test_the_best_rival_of_each_mask_decides() -> None:
    def rival(record: Record, kernel: str, ratio: float) -> Record:
        return replace(record, kernel=kernel, tflops=record.tflops / ratio)

    back = replace(CAUSAL, direction="bwd", seqlen=8192)
    rows = beside_best(
        [
            CAUSAL,
            FULL,
            back,
            BLOCKS,
            rival(CAUSAL, "fa3", 0.96),
            rival(CAUSAL, "fa4", 1.5),
            rival(FULL, "fa4", 1.2),
            rival(back, "cudnn_flex", 1.01),
            rival(back, "flex", 0.5),
            rival(BLOCKS, "fa4", 0.5),
        ]
    ).rows
    assert rows == (
        ("8K", "bwd", "1.010 ×", "0 of 1", "1 of 1", "1 of 1", "1.010 ×", "causal", "yes"),
        ("32K", "fwd", "1.073 ×", "1 of 2", "1 of 2", "1 of 2", "0.960 ×", "causal", "no"),
    )


def test_measures_keeps_and_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--kernels",
        "band,naive,sdpa",
        "--lengths",
        "128",
        "--heads",
        "4:2",
        "--only",
        "blocks",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    records = read(tmp_path)
    assert len(records) == 4 * 2 * 2 * 3
    assert all("GPUs only" in record.reason for record in records if record.kernel == "band")
    assert all(
        record.time_ms and record.tflops and not record.reason
        for record in records
        if record.kernel != "band"
    )
    assert main([*arguments, "--keep", "--max-seconds", "-1"]) == 0
    assert read(tmp_path) == records and "call again with --keep" in capsys.readouterr().out


def test_plans_as_on_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no lines for dQ where one kernel makes all gradients. Measured lines stay if a later mask
    fails."""

    def as_on_hopper(head_dim: int, _: torch.device, **how: Any) -> dict[BandKernel, TileConfig]:
        return choose_tiles(head_dim, (9, 0), **how)

    def measured(name: str, *others: Any) -> dict[str, Any]:
        assert name != "causal_blockwise", "as if the machine were taken away"
        return measured_as_ever(name, *others)

    measured_as_ever = band_plan.measured
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("longca.ops.band.plan.choose_tiles", as_on_hopper)
    monkeypatch.setattr(band_plan, "measured", measured)
    with pytest.raises(AssertionError, match="taken away"):
        band_plan.main(["--length", "8K", "--out", str(tmp_path)])
    actual = {line["mask"]: line["visible_queries"] for line in read_records(tmp_path, "band_plan")}
    assert actual["causal"] == "" and float(actual["block_sparse_uniform"]) == 1


def test_plans_of_every_mask(tmp_path: Path) -> None:
    """In few operations: they are what takes time on a GPU, where most need some 10 µs to start."""
    assert band_plan.main(["--length", "2K", "--out", str(tmp_path)]) == 0
    lines = read_records(tmp_path, "band_plan")
    assert [line["mask"] for line in lines] == Registry("mask").names()
    assert all(
        0 < float(line["MB"]) < 1 and 0 < float(line[f"visible_{use.value}"]) <= 1
        for line in lines
        for use in BandKernel
    )
    assert all(0 < int(line["operations"]) <= 650 for line in lines)
