"""Tests of the kernel tables, on made-up records."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.kernels.anchors import compare
from benchmarks.kernels.kernel_tables import beforehand, dense, main, sparse
from tests.helpers.support import ROOT


def _row(**changes: object) -> dict[str, object]:
    row = {
        "kernel": "fa3",
        "mask": "full",
        "mask_family": "no documents",
        "mask_params": "",
        "mask_density_asked": float("nan"),
        "seqlen": 32768,
        "num_q_heads": 64,
        "num_kv_heads": 8,
        "direction": "fwd",
        "seed": 0,
        "status": "ok",
        "tflops": 700.0,
        "density": 1.0,
        "plan_ms": 0.001,
        "compile_ms": float("nan"),
        "metadata_bytes": 2.5e7,
    }
    return {**row, **changes}


def test_dense_has_both_directions_and_means_where_all_masks_ran() -> None:
    rows = [
        _row(),
        _row(direction="bwd", tflops=600.0),
        _row(mask="causal", tflops=400.0),
        _row(kernel="fa2", tflops=390.0),
        _row(kernel="fa2", mask="causal", status="unsupported", tflops=float("nan")),
        _row(seed=1, tflops=9999.0),
    ]
    table = dense(pd.DataFrame(rows))
    fa2, fa3 = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert fa3["full"] == "700 / 600" and fa3["causal"] == "400 / –" and fa3["all 2 masks"] == "529 / 600"
    assert fa2["full"] == "390 / –" and fa2["causal"] == "" == fa2["all 2 masks"]


def test_sparse_is_by_block_density_and_heads() -> None:
    block = {"mask": "block_sparse_uniform", "mask_family": "block-sparse", "mask_density_asked": 0.5}
    rows = [
        _row(**block, mask_params="block=64, density=0.5"),
        _row(**block, mask_params="block=128, density=0.5", tflops=500.0),
    ]
    collected = dict(zip(sparse(pd.DataFrame(rows)).columns, sparse(pd.DataFrame(rows)).rows[0], strict=True))
    assert (
        collected["64:8, block 64, 0.5"] == "700 / –"
        and collected["64:8, block 128, 0.5"] == "500 / –"
        and collected["64:64, block 64, 0.5"] == ""
    )


def test_costs_are_short() -> None:
    table = beforehand(pd.DataFrame([_row()]))
    assert table.rows == (("fa3", "1", "< 0.01", "< 0.01", "", "", "25", "25"),)


@pytest.mark.parametrize(("tflops", "verdict"), [(700.0, "reached"), (665.0, "reached"), (660.0, "below")])
def test_an_anchor_may_be_missed_by_five_percent(tflops: float, verdict: str) -> None:
    anchor = {
        "kernel": "fa3",
        "mask": "full",
        "density": 1.0,
        "seqlen": 32768,
        "heads": "64:8",
        "fwd_tflops": 700.0,
        "bwd_tflops": 600.0,
        "how": "",
    }
    rows = compare(pd.DataFrame([anchor]), pd.DataFrame([_row(tflops=tflops)]))
    assert rows.verdict.tolist() == [verdict, "not measured"]


def test_an_anchor_of_another_draw_says_nothing() -> None:
    anchor = {
        "kernel": "fa3",
        "mask": "full",
        "density": 0.9,
        "seqlen": 32768,
        "heads": "64:8",
        "fwd_tflops": 700.0,
        "bwd_tflops": 600.0,
        "how": "",
    }
    rows = compare(pd.DataFrame([anchor]), pd.DataFrame([_row(tflops=900.0)]))
    assert rows.verdict.tolist() == ["another draw", "not measured"]


@pytest.mark.long
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_pages_have_the_tables_of_the_committed_records(gpu: str, tmp_path: Path, monkeypatch) -> None:
    page = ROOT / f"docs/results/{gpu}/kernels.md"
    copy = tmp_path / page.name
    copy.write_bytes(page.read_bytes())
    records = [str(ROOT / f"reports/{gpu}/{gpu}-{study}.parquet") for study in ("dense", "sparse")]
    monkeypatch.setattr(sys, "argv", ["kernel_tables", *records, "--write", str(copy)])
    main()
    assert copy.read_text() == page.read_text(), "`make docs` writes it anew"
