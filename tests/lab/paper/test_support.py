"""Masks that kernels run by their own answers, beside the study's: tables 1 and 2."""

from types import SimpleNamespace

import pandas as pd
import pytest

from longca.lab.paper.analysis.support import answer, asked_kernels, differences, outcomes
from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import Exhibit, PaperTable
from longca.masks import build_mask
from tests.helpers.claims.verdicts import grid, table

EXHIBITS = {exhibit.name: exhibit for exhibit in exhibits()}


@pytest.fixture(scope="module")
def records() -> pd.DataFrame:
    sparse = {"mask": "block_sparse_uniform", "mask_family": "block-sparse", "direction": "fwd"}
    return table(
        grid(300, kernel="vsa", seqlen=[8192, 16384], **sparse),
        grid(None, kernel="vsa", seqlen=65536, status="oom", **sparse),
        grid(None, kernel="vsa", seqlen=4096, status="unsupported", **sparse),
        grid(500, kernel="fa3", mask="causal"),
    )


def cells(exhibit: Exhibit, data: pd.DataFrame) -> dict[str, dict[str, str]]:
    assert isinstance(exhibit, PaperTable)
    actual = exhibit.cells(data)
    return {row[0]: dict(zip(actual.header, row, strict=True)) for row in actual.rows}


def test_an_answer_is_the_kernels_own_refusal() -> None:
    kernel = SimpleNamespace(
        supports=lambda call, traits, device: (
            "no GQA" if call.num_kv_heads < 64 and call.direction == "bwd" else None
        )
    )
    mask = build_mask("causal", seqlen=128)
    assert answer(kernel, mask, (64, 64)) == ("both", "") and answer(kernel, mask, (64, 8)) == (
        "fwd",
        "no GQA",
    )
    refuses_all = SimpleNamespace(supports=lambda *_: "never")
    assert answer(refuses_all, mask, (64, 8)) == ("no", "never")


def test_neither_controls_nor_rows_as_released_are_asked() -> None:
    names = [kernel.name for kernel in asked_kernels()]
    assert {"fa3", "band", "vsa"} <= set(names) and not {"control", "matmul", "as_released_flex"} & set(names)


def test_outcomes_count_what_was_tried(records: pd.DataFrame) -> None:
    assert outcomes(records, "vsa") == "2 of 3 cells with a number; 1 oom"
    assert outcomes(records, "flex") == "none"


def test_differences_are_named() -> None:
    asked = pd.DataFrame(
        [("vsa", "GQA", "fwd", "no"), ("vsa", "blocks", "both", "both"), ("band", "GQA", "both", "")],
        columns=["kernel", "question", "answer", "study"],
    )
    assert differences(asked) == "of 2 answers that the study gives, 1 differ: vsa: GQA (fwd, not no)"
    assert differences(asked.loc[1:]) == "of 1 answer that the study gives, 0 differ"


def test_table_2_says_what_block_sparse_kernels_can_do(records: pd.DataFrame) -> None:
    exhibit = EXHIBITS["sparse_features"]
    data = exhibit.data(records)
    rows = cells(exhibit, data)
    assert "fa3" not in rows and rows["vsa"]["cells in the records"] == "2 of 3 cells with a number; 1 oom"
    assert rows["vsa"]["blocks of 64 with GQA"] == "fwd [no]" and rows["vsa"]["variable blocks"] == "no"
    assert rows["flashinfer"]["blocks of 64"] == "fwd" and rows["flashinfer"]["head dims"] == "(128)"
    reasons = data[(data.kernel == "flashinfer") & (data.question == "blocks of 64")].reason
    assert "no backward" in reasons.iloc[0]
    assert "vsa: blocks of 128 (both, not no), blocks of 64 with GQA (fwd, not no)" in exhibit.title(data)
    assert rows["flex"]["blocks of 16"] == rows["flex"]["blocks of 128 with GQA"] == "both", (
        "as the study says"
    )


def test_table_1_says_which_masks_run(records: pd.DataFrame) -> None:
    exhibit = EXHIBITS["dense_support"]
    data = exhibit.data(records)
    rows = cells(exhibit, data)
    assert (
        data.question.nunique() == 12
        and "vsa" not in rows
        and rows["fa3"]["cells in the records"] == "1 of 1 cell with a number"
    )
    heterogeneous = (
        "shared_question",
        "causal_blockwise",
        "prefix_lm",
        "prefix_lm_document",
        "global_sliding_window",
        "block_causal_document",
    )
    assert all(rows["fa3"][mask] == "no" and rows["flex"][mask] == "both" for mask in heterogeneous)
    assert "cudnn: full_document (fwd, not both), causal_document (fwd, not both)" in exhibit.title(data)
