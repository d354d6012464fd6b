"""Cells of new tokens after a context, measured: inputs, checks, predictions, and a run up to its page."""

import json

import pytest
import torch

from longca.lab.bench.check.inputs import make_inputs
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.plan.predict import Predictor
from longca.lab.studies.grid import Measure
from tests.helpers.bench.cells import small_cell, write_kernel
from tests.helpers.command import called

QUICK = Measure.fixed(warmup=1, repeats=4)
CPU = torch.device("cpu")
COMPILED = ["causal_sliding_window", "speculative_tree"]  # flex compiles for seconds for each mask
MASKS = ["causal", "causal_document", "causal_sliding_window", "speculative_tree", "full"]
TOP_LEFT = """
def _scores(self, q, k):
    self._hidden = torch.ones(q.shape[-2], k.shape[-2]).tril().logical_not()[None, None]
    return super()._scores(q, k)"""


def test_queries_are_the_new_tokens_and_keys_all_of_them():
    cell = small_cell(new_tokens=24)
    inputs = make_inputs(cell, CPU)
    assert inputs.q_THD.shape == inputs.dout_THD.shape == (24, 4, 16)
    assert inputs.k_TGD.shape == inputs.v_TGD.shape == (128, 2, 16)
    square = make_inputs(small_cell(), CPU)
    assert square.q_THD.shape == (128, 4, 16)


@pytest.mark.parametrize(
    ("kernel", "direction", "mask"),
    [
        *((kernel, "bwd", mask) for kernel in ("naive", "sdpa") for mask in MASKS),
        *(("flex", "fwd", mask) for mask in COMPILED),
        *(
            pytest.param("flex", "fwd", mask, marks=pytest.mark.slow)
            for mask in MASKS
            if mask not in COMPILED
        ),
    ],
)
def test_a_good_kernel_is_right_with_fewer_queries_than_keys(kernel, direction, mask):
    cell = small_cell(kernel, mask, direction, new_tokens=40)
    result = measure_kernel(cell, QUICK, CPU)
    assert result.outcome.status == "ok", result.outcome
    assert result.mask is not None and result.mask.area <= cell.num_pairs


def test_a_kernel_that_aligns_at_the_top_left_is_incorrect(tmp_path, monkeypatch):
    write_kernel("top_left", TOP_LEFT, tmp_path, monkeypatch)
    assert measure_kernel(small_cell("top_left", "causal"), QUICK, CPU).outcome.status == "ok"
    assert (
        measure_kernel(small_cell("top_left", "causal", new_tokens=40), QUICK, CPU).outcome.status
        == "incorrect"
    )


def test_kernels_answer_in_one_line_whether_they_can():
    predictor = Predictor("cuda", is_here=False)

    def refusal(kernel, mask):
        cell = small_cell(kernel, mask, seqlen=8192, new_tokens=1024, head_dim=128, dtype="bf16")
        return predictor.refusal(cell) or ""

    for kernel in ("fa2", "fa3", "torch_flash"):
        assert not refusal(kernel, "causal") and not refusal(kernel, "causal_sliding_window")
        for mask in ("causal_document", "speculative_tree"):
            assert "only one window over all tokens" in refusal(kernel, mask)
    for kernel in ("cudnn", "cudnn_graph"):
        assert not refusal(kernel, "full") and "all see all" in refusal(kernel, "causal")
    for kernel in ("band", "fa4", "flex", "cudnn_flex"):
        assert not any(refusal(kernel, mask) for mask in MASKS)
    assert "has no context" in refusal("control", "full")


def test_predictions_count_the_pairs_of_new_tokens():
    predictor = Predictor("cuda", is_here=False)
    cells = [
        small_cell("band", "causal", seqlen=8192, new_tokens=count, dtype="bf16", head_dim=128)
        for count in (1024, None)
    ]
    chunk, square = (predictor.predict(cell) for cell in cells)
    area = 1024 * 8192 - 1024 * 1023 // 2
    assert chunk.flops == pytest.approx(cells[0].flops(area, 1), rel=1e-6)
    assert chunk.tensor_bytes < square.tensor_bytes
    blocks = small_cell(
        "flex", "block_sparse_uniform", seqlen=8192, new_tokens=1024, dtype="bf16", head_dim=128
    )
    assert predictor.predict(blocks).density == pytest.approx(0.5)


@pytest.mark.slow
def test_a_run_of_the_small_study_ends_in_a_page(tmp_path):
    environ = {"LONGCA_RESULTS": str(tmp_path), "LONGCA_DEVICE": "cpu"}
    chosen = ["-m", "speculative_tree,causal", "-s", "512"]
    run = called(["run", "kv-cache-quick", *chosen], environ)
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "kv-cache-quick"
    records = [json.loads(path.read_text()) for path in (folder / "cells").glob("**/*.json")]
    assert {record["outcome"]["status"] for record in records} == {"ok"}
    assert {record["cell"].get("new_tokens") for record in records} == {None, 16, 32, 64, 128}
    assert called(["report", "kv-cache-quick"], environ).returncode == 0
    assert "128 new tokens" in (folder / "report.html").read_text(encoding="utf-8")
