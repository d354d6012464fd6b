"""Rows for GPUs describe themselves without one, and the parts of them that need none."""

import sys
from pathlib import Path

import pytest
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import missing_modules
from longca.lowering.flex import block_mask
from longca.masks import build_mask
from tests.helpers.kernels.cases import Case, pattern_mask

ROWS = ["band", "cudnn_flex", "flashmask", "flex_flash"]


@pytest.mark.parametrize("name", ROWS)
def test_is_for_gpus_and_says_what_it_takes(name: str) -> None:
    kernel = Registry("kernel").load(name)
    assert "GPU" in kernel.available("cpu")
    case = Case(build_mask("causal", seqlen=64), 4, 2, head_dim=128)
    assert kernel.supports(case.cell(name, "bwd", "bf16").call_spec, case.mask.traits, "cuda") is None
    assert "bf16" in kernel.supports(case.cell(name, "fwd", "fp32").call_spec, case.mask.traits, "cuda")
    wide = Case(case.mask, 4, 2, head_dim=256)
    assert "head dim" in kernel.supports(wide.cell(name, "fwd", "bf16").call_spec, case.mask.traits, "cuda")


def test_band_atomic_is_where_it_differs_from_band() -> None:
    kernel = Registry("kernel").load("band_atomic")

    def reason(direction: str, head_dim: int = 128, block: int = 0) -> str | None:
        mask = (
            build_mask("block_sparse_uniform", seqlen=512, block=block)
            if block
            else build_mask("causal", seqlen=64)
        )
        case = Case(mask, 4, 2, head_dim=head_dim)
        return kernel.supports(case.cell("band_atomic", direction, "bf16").call_spec, mask.traits, "cuda")

    assert reason("bwd") is None and reason("bwd", block=128) is None
    assert all(
        "it is `band`" in str(other) for other in (reason("fwd"), reason("bwd", 64), reason("bwd", block=64))
    )


def test_cudnn_flex_refuses_tables_that_are_too_large() -> None:
    kernel = Registry("kernel").load("cudnn_flex")
    case = Case(
        build_mask("block_sparse_uniform", seqlen=65536, num_kv_heads=2, block=64, density=0.5),
        64,
        2,
        head_dim=128,
    )
    assert "GiB" in kernel.supports(
        case.cell("cudnn_flex", "fwd", "bf16").call_spec, case.mask.traits, "cuda"
    )


def test_submodules_are_found_without_importing_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud" / "inner").mkdir(parents=True)
    (tmp_path / "loud" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "loud" / "inner" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_modules(("loud", "loud.inner")) is None
    assert missing_modules(("loud.other",)) == "module 'loud.other' is not installed"
    assert missing_modules(("no_such_parent.inner",)) == "module 'no_such_parent.inner' is not installed"
    assert "loud" not in sys.modules


def test_a_table_of_blocks_says_the_same_as_int32() -> None:
    mask = pattern_mask("block_sparse_uniform", 2)
    q = torch.arange(128)[:, None]
    k = torch.arange(128)[None]
    for head in range(4):
        answers = [
            block_mask(mask, "cpu", 4, bool_tables=bool_tables).mask_mod(0, torch.tensor(head), q, k)
            for bool_tables in (True, False)
        ]
        assert torch.equal(*answers) and answers[1].dtype == torch.bool
        assert torch.equal(answers[0], torch.from_numpy(mask.dense()[head // 2]))
