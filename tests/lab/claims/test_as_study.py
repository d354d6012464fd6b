"""Records that count as the study's own, and the verdicts that follow."""

import re

import pytest

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import all_claims
from longca.lab.claims.evidence import missing, points
from longca.lab.claims.regular import is_heterogeneous
from longca.lab.studies.select import Selection
from longca.lab.studies.study import load_study
from tests.helpers.claims.cases import BLOCKS_64, sparse
from tests.helpers.claims.dense_cases import CASES, DRAWN, H100, H200
from tests.helpers.claims.verdicts import grid, table

CLAIMS = {claim.number: claim for claim in all_claims()}
WINDOW = "window=1024, paper_compat=False"


def own(*groups, **asked):
    """(kernel, rate) of the rows that are the study's own."""
    rows = of_study(table(*groups), **asked)
    return [
        (row.kernel, row.tflops_per_device if row.status == "ok" else row.status) for row in rows.itertuples()
    ]


@pytest.mark.parametrize("number", CASES)
def test_records_flip_a_claim_as_the_study_has_it(number):
    actual = [CLAIMS[number].judge_as_study(table(rows)) for _, rows in CASES[number]]
    assert [verdict.status for verdict in actual] == [status for status, _ in CASES[number]]
    for verdict in actual:
        assert verdict.missing or verdict.status != "open"
        assert all(
            "longca run as-study" in text or "adapter" in text or "that kernel" in text
            for text in verdict.missing
        )


def test_another_gpu_counts_only_for_what_depends_on_none():
    both = (
        grid(500, kernel="fa3", **H100),
        grid(600, kernel="fa3", **H200),
        grid(400, kernel="fa3", device="NVIDIA H100 PCIe"),
    )
    assert own(*both) == [("fa3", 500)] and len(own(*both, any_gpu=True)) == 3
    lacking = [
        grid(None, kernel="fa3", status="oom", device=name)
        for name in ("NVIDIA A100-SXM4-40GB", "NVIDIA H200", "Nobody's")
    ]
    assert own(*lacking, any_gpu=True) == [("fa3", "oom")], (
        "what a smaller GPU lacks says nothing of the study's"
    )


def test_stand_ins_and_this_projects_kernels_judge_nothing():
    assert own(grid(500, kernel=["flashmask", "fa2_sparse", "band", "cudnn", "fa4", "fa2"], **H100)) == [
        ("fa2", 500)
    ]


def test_a_call_that_was_repaired_counts_as_released_alone():
    shared = {"mask": "causal_sliding_window", "mask_params": "window=1024", **H100}
    assert own(grid(500, kernel=["naive", "sdpa"], **shared), sparse("flex", 500, BLOCKS_64, **H100)) == []
    assert own(
        grid(500, kernel="sdpa", heads="64:64", **shared), grid(500, kernel=["sdpa", "flex"], **H100)
    ) == [("sdpa", 500), ("sdpa", 500), ("flex", 500)]
    assert own(grid(9, kernel="as_released_naive", **shared)) == [("naive", 9)]
    refused = grid(None, kernel="as_released_sdpa", status="unsupported", **H100)
    assert own(refused, grid(500, kernel="sdpa", **H100)) == [("sdpa", 500)], (
        "its refusal says that the plain call is the study's"
    )
    backward = {"direction": "bwd", **H100}
    assert own(grid(500, kernel="fa3", **backward), grid(450, kernel="as_released_fa3", **backward)) == [
        ("fa3", 450)
    ]


def test_a_kernel_as_released_is_ranked_nowhere_else():
    records = table(grid(900, kernel="as_released_naive", **H100), grid(500, kernel="fa3", **H100))
    assert [point.kernel for point in points(records)] == ["fa3"]


@pytest.mark.parametrize(
    ("mask", "params", "corpus", "seqlen", "counts"),
    [
        ("full", "", "", 8192, True),
        ("causal_sliding_window", "window=1024", "", 8192, True),
        ("causal_sliding_window", "window=4096", "", 8192, False),
        ("full_document", DRAWN, "pile", 8192, True),
        ("full_document", "paper_compat=False", "pile", 8192, False),
        ("full_document", DRAWN, "prolong64k", 8192, False),
        ("full_document", DRAWN, "prolong64k", 32768, True),
        ("block_causal_document", f"block=1024, {DRAWN}", "", 8192, True),
        ("block_causal_document", f"block=512, {DRAWN}", "", 8192, False),
        ("sliding_window", f"window=1024, {DRAWN}", "", 8192, False),
        ("block_sparse_uniform", "block=64, density=0.5, scores=random", "", 8192, True),
        ("block_sparse_uniform", "block=32, density=0.5, scores=random", "", 8192, False),
    ],
)
def test_masks_and_documents_are_those_that_the_study_draws(mask, params, corpus, seqlen, counts):
    made = grid(500, kernel="fa2", mask=mask, mask_params=params, corpus=corpus, seqlen=seqlen, **H100)
    assert bool(own(made)) is counts and len(own(made, any_draw=True)) == 1


def test_a_sliding_window_runs_both_sides_and_counts_one():
    both = {
        "mask": "sliding_window",
        "mask_params": WINDOW,
        "seqlen": 8192,
        "density": 0.2344818115234375,
        **H100,
    }
    first = both | {"mask_params": f"window=1024, {DRAWN}", "density": 0.117}
    ((kernel, rate),) = own(grid(600, kernel="fa2", **both), grid(500, kernel="fa2", **first))
    assert kernel == "fa2" and rate == pytest.approx(300, rel=0.01)
    (point,) = points(of_study(table(grid(600, kernel="fa2", **both))))
    assert point.rate == pytest.approx(rate) and point.ranked.measurements[0].low < rate
    assert own(grid(9, kernel="as_released_naive", **both), grid(8, kernel="as_released_naive", **first)) == [
        ("naive", 8)
    ]
    short = both | {"seqlen": 1024, "density": 1.0}
    assert own(grid(600, kernel="fa2", **short)) == [("fa2", 600)], (
        "a window over the whole sequence hides nothing"
    )


@pytest.mark.parametrize(
    ("mask", "params", "seqlen", "expected"),
    [
        ("block_causal_document", "block=1024, paper_compat=False", 1024, False),
        ("prefix_lm", "paper_compat=False", 1024, True),
        ("global_sliding_window", "num_global=512, window=1024, paper_compat=False", 1024, False),
        ("global_sliding_window", "num_global=512, window=1024, paper_compat=False", 8192, True),
        ("shared_question", "paper_compat=False", 8192, True),
    ],
)
def test_a_mask_that_equals_a_regular_one_at_a_length_is_none_of_the_heterogeneous(
    mask, params, seqlen, expected
):
    records = table(
        grid(
            500,
            kernel="flex",
            mask=mask,
            mask_params=params,
            seqlen=seqlen,
            corpus="pile" if "question" in mask else "",
        )
    )
    (point,) = points(records)
    assert is_heterogeneous(point) is expected


def test_missing_cells_come_with_a_command_that_measures_them():
    gaps = missing(
        [],
        "one GPU",
        study="as-study",
        kernel=("naive", "fa2"),
        mask=["full"],
        seqlen=[8192, 16384],
        heads=["64:8"],
        direction=["bwd"],
    )
    assert gaps.texts == (
        "naive, fa2; full; 8K, 16K; 64:8; bwd (needs one GPU: longca run as-study -k '*naive,fa2' -m full "
        "-s 8K,16K --heads 64:8 -d bwd)",
    )
    cells = load_study("as-study").cells()
    chosen = Selection(
        kernel="*naive,fa2", mask="full", seqlen="8K,16K", heads="64:8", direction="bwd"
    ).apply(cells)
    assert {(cell.kernel, cell.seqlen) for cell in chosen} == {
        (kernel, length) for kernel in ("as_released_naive", "fa2") for length in (8192, 16384)
    }


def test_the_commands_of_dense_claims_choose_cells_that_count():
    """Every cell of the study as-study, but for controls, counts as the study's own on its GPU."""
    cells = [
        cell
        for cell in load_study("as-study").cells()
        if cell.kernel not in ("control", "matmul", "device_copy")
    ]
    made = [
        row
        for cell in cells[::37]
        for row in grid(
            500,
            kernel=cell.kernel,
            mask=cell.mask,
            corpus=cell.corpus or "",
            seqlen=cell.seqlen,
            direction=cell.direction,
            mask_params=_params(cell),
            heads=f"{cell.num_q_heads}:{cell.num_kv_heads}",
            density=0.1,
            study="as-study",
            **H100,
        )
    ]
    assert len(of_study(table(made))) == len(made) > 50
    commands = {
        text for number in (1, 5, 6, 12, 13) for text in CLAIMS[number].judge_as_study(table()).missing
    }
    for command in commands:
        options = dict(re.findall(r"(-k|-m|-s|--heads|-d) '?([^ ')]+)'?", command))
        names = {"-k": "kernel", "-m": "mask", "-s": "seqlen", "--heads": "heads", "-d": "direction"}
        assert Selection(**{names[option]: text for option, text in options.items()}).apply(cells)


def _params(cell) -> str:
    from longca.core.plugin import Registry

    full = Registry("mask").load(cell.mask).resolve(cell.mask_params)
    return ", ".join(f"{name}={value}" for name, value in full.items())
