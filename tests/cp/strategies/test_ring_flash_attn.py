"""The package ring-flash-attn: which masks, lengths, dtypes and kernels it takes."""

import pytest

from longca.core.plugin import Registry
from longca.lab.studies.cell import Cell
from tests.helpers.cp.case import STATIC_MASKS
from tests.helpers.cp.rings_over_flash import MASKS, cell, refusal


@pytest.mark.parametrize("mask", [*STATIC_MASKS, "block_sparse_uniform"])
@pytest.mark.parametrize("strategy", ["ring_flash_attn"])
def test_each_says_which_masks_it_is_for(strategy: str, mask: str):
    reason = refusal(cell(strategy, mask))
    assert (reason is None) == (mask in MASKS[strategy]), reason


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (cell("ring_flash_attn", "causal", seqlen=132), "132 tokens are no 8 equal parts"),
        (cell("ring_flash_attn", "full", seqlen=130), "130 tokens are no 4 equal parts"),
        (cell("ring_flash_attn", "full", world=1), "one rank"),
        (cell("ring_flash_attn", "full", kernel="cudnn"), "fa2 or torch_flash"),
        (cell("ring_flash_attn", "full", kernel="fa2"), "head dim 128"),
        (cell("ring_flash_attn", "full", dtype="fp16"), "bf16"),
        (cell("ring_flash_attn", "full", dtype="fp16", direction="fwd"), None),
        (cell("ring_flash_attn", "causal", dtype="fp16"), None),
    ],
)
def test_refusals(wanted: Cell, words: str | None):
    reason = refusal(wanted)
    assert words in reason if words else reason is None


@pytest.mark.parametrize("strategy", ["ring_flash_attn"])
def test_a_package_that_is_not_there_is_named(strategy: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Registry("strategy").load(strategy).available("cpu") == f"module '{strategy}' is not installed"
