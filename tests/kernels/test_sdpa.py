import pytest
import torch

from longca.core.plugin import Registry
from tests.kernels.cases import Case, hand_made_cases, pattern_mask


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(
    ("mask", "needs_raster"),
    [("full", False), ("causal", False), ("causal_document", True), ("block_sparse_uniform", True)],
)
def test_a_mask_tensor_and_copies_only_where_needed(mask: str, needs_raster: bool, direction: str) -> None:
    case = Case(pattern_mask(mask, 2), 8, 2)
    prepared = Registry("kernel").load("sdpa").prepare(case.problem(direction, torch.bfloat16))
    assert ("metadata_bytes" in prepared.costs) == needs_raster
    k = prepared.to_layout(case.inputs(torch.bfloat16)[1])
    needs_copies = needs_raster or direction == "bwd"
    assert any("copied 4 times" in note for note in prepared.notes) == needs_copies
    assert k.shape[0] * k.shape[1] == (8 if needs_copies else 2)


def test_stays_off_the_unfused_path() -> None:
    """GQA with a mask would take it, did the KV heads not come copied."""
    for name in ("full", "causal", "causal_document", "block_sparse_variable"):
        prepared = (
            Registry("kernel")
            .load("sdpa")
            .prepare(Case(pattern_mask(name, 2), 8, 2).problem("fwd", torch.bfloat16))
        )
        assert not any("MATH" in note for note in prepared.notes), name


def test_says_that_rows_are_repaired() -> None:
    prepared = Registry("kernel").load("sdpa").prepare(hand_made_cases()[0].problem("fwd"))
    assert any("repaired" in note for note in prepared.notes)
