"""The block-sparse rows' own account of themselves, where no GPU is needed to ask."""

import time
from importlib import import_module

import pytest

from longca.core.plugin import Registry
from longca.lab.paper.analysis.support import STUDY_ROWS
from longca.masks import build_mask
from longca.masks.mask import Mask
from tests.helpers.kernels.cases import Case

OF_THE_STUDY = ["fa2_sparse", "flashinfer", "vsa", "vsa_triton"]
ROWS = [*OF_THE_STUDY, "cudnn_bsa"]
BLOCKS = {
    block: build_mask("block_sparse_uniform", seqlen=512, num_kv_heads=2, block=block)
    for block in (16, 64, 128)
}
VARIABLE = build_mask("block_sparse_variable", seqlen=512, num_kv_heads=2, mean_block=64)


def answer(name: str, mask: Mask, num_q_heads: int, direction: str) -> str | None:
    cell = Case(mask, num_q_heads, 2, head_dim=128).cell(name, direction, "bf16")
    return Registry("kernel").load(name).supports(cell.call_spec, mask.traits, "cuda")


@pytest.mark.parametrize("name", ROWS)
def test_is_of_blocks_and_of_gpus(name: str) -> None:
    kernel = Registry("kernel").load(name)
    assert (
        kernel.family == "sparse"
        and (name in STUDY_ROWS) == (name in OF_THE_STUDY)
        and "GPUs only" in kernel.available("cpu")
    )
    assert "block masks" in answer(name, build_mask("causal", seqlen=512), 2, "fwd")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("block", [64, 128])
def test_takes_the_blocks_of_the_study(name: str, block: int) -> None:
    assert answer(name, BLOCKS[block], 2, "fwd") is None
    assert (answer(name, BLOCKS[block], 2, "bwd") is None) == (name != "flashinfer")


def test_who_has_gqa() -> None:
    assert {name for name in ROWS if answer(name, BLOCKS[64], 8, "fwd") is None} == {
        "fa2_sparse",
        "flashinfer",
        "vsa",
        "cudnn_bsa",
    }
    assert {name for name in ROWS if answer(name, BLOCKS[64], 8, "bwd") is None} == {"fa2_sparse"}


def test_who_has_other_blocks() -> None:
    assert {name for name in ROWS if answer(name, BLOCKS[16], 2, "fwd") is None} == {
        "fa2_sparse",
        "flashinfer",
    }
    assert {name for name in ROWS if answer(name, VARIABLE, 2, "fwd") is None} == {"flashinfer"}


def test_the_backward_of_cudnn_bsa_is_of_one_kind() -> None:
    kernel = Registry("kernel").load("cudnn_bsa")
    for head_dim, dtype, direction, fits in (
        (64, "fp16", "fwd", True),
        (64, "bf16", "bwd", False),
        (128, "fp16", "bwd", False),
    ):
        cell = Case(BLOCKS[128], 2, 2, head_dim=head_dim).cell("cudnn_bsa", direction, dtype)
        reason = kernel.supports(cell.call_spec, BLOCKS[128].traits, "cuda")
        assert reason is None if fits else "head dim 128 in bf16" in reason


def test_flashinfer_counts_its_indices_beforehand() -> None:
    kernel = Registry("kernel").load("flashinfer")
    reasons = {}
    for density in (0.45, 0.55):
        case = Case(
            build_mask("block_sparse_uniform", seqlen=65536, num_kv_heads=64, block=64, density=density),
            64,
            64,
            head_dim=128,
        )
        reasons[density] = kernel.supports(
            case.cell("flashinfer", "fwd", "bf16").call_spec, case.mask.traits, "cuda"
        )
    assert reasons[0.45] is None and "do not fit" in reasons[0.55]


@pytest.mark.parametrize(
    ("name", "where"),
    [("vsa", "block_listed"), ("fa2_sparse", "backends.fa2_sparse"), ("flex", "backends.flex")],
)
def test_the_time_of_a_plan_is_that_of_the_device_too(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"longca.kernels.{where}")
    monkeypatch.setattr(module, "wait", lambda device: time.sleep(0.05))
    monkeypatch.setattr(module, "first_call_ms", lambda prepared: 0.0, raising=False)
    prepared = Registry("kernel").load(name).prepare(Case(BLOCKS[64], 2, 2, head_dim=128).problem("fwd"))
    assert prepared.costs["plan_ms"] >= 50
