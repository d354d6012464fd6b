"""FlexAttention's forms against the raster, against torch's own construction, and inside the compiled
kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from longca.lowering.flex import block_mask, mask_mod
from longca.masks import Mask
from tests.helpers.kernels.masks_for_tests import (
    PATTERNS,
    band_masks,
    grid_masks,
    pattern_mask,
    rasters,
    uniform_grid,
)
from tests.helpers.support import examples

HEADS_PER_GROUP = 2


def heads_of(mask: Mask) -> int:
    return mask.num_groups * HEADS_PER_GROUP


def per_head(mask: Mask) -> torch.Tensor:
    """Bool (Hq, Sq, Sk)."""
    return torch.from_numpy(rasters(mask).repeat(HEADS_PER_GROUP, axis=0))


def check_mask_mod(mask: Mask) -> None:
    visible = mask_mod(mask, "cpu", heads_of(mask))
    seen = create_mask(visible, 1, heads_of(mask), mask.seqlen_q, mask.seqlen_k, device="cpu")[0]
    assert torch.equal(seen, per_head(mask))


@pytest.mark.parametrize("name", PATTERNS)
def test_mask_mod_of_patterns(name: str):
    check_mask_mod(pattern_mask(name))


@examples(60)
@given(mask=band_masks(max_groups=2) | grid_masks())
def test_mask_mod_of_any_mask(mask: Mask):
    check_mask_mod(mask)


@pytest.mark.parametrize(
    "mask",
    [
        pattern_mask("causal_document"),
        pattern_mask("prefix_lm"),
        uniform_grid(90, 16, 8, 2, seed=0),
        pattern_mask("block_sparse_variable"),
    ],
    ids=["rows", "arithmetic", "uniform", "variable"],
)
def test_mask_mod_reads_no_further_than_its_tables(mask: Mask):
    """Indices of a padded block are answered, not refused."""
    visible = mask_mod(mask, "cpu", heads_of(mask))
    index = torch.arange(1024)
    seen = visible(torch.tensor(0), torch.tensor(0), index[:, None], index)
    assert torch.equal(seen[: mask.seqlen_q, : mask.seqlen_k], per_head(mask)[0])


def test_heads_must_divide():
    with pytest.raises(ValueError, match="3 query heads"):
        mask_mod(uniform_grid(32, 16, 16, groups=2, seed=0), "cpu", 3)


def dense_blocks(counts: torch.Tensor, index: torch.Tensor, num_across: int) -> torch.Tensor:
    """Bool (H, lines, num_across) from index lists of one batch entry."""
    out = torch.zeros(*counts.shape[1:], num_across, dtype=torch.bool)
    for head, line in np.ndindex(*counts.shape[1:]):
        out[head, line, index[0, head, line, : counts[0, head, line]].long()] = True
    return out


def check_block_mask(mask: Mask, block_size: int | tuple[int, int]) -> None:
    """Every list says what torch's own construction says, which evaluates all Sq × Sk."""
    heads = heads_of(mask) if mask.num_groups > 1 else 1
    wanted = create_block_mask(
        mask_mod(mask, "cpu", heads_of(mask)), 1, heads, mask.seqlen_q, mask.seqlen_k, "cpu", block_size
    )
    ours = block_mask(mask, "cpu", heads_of(mask), block_size)
    assert ours.BLOCK_SIZE == wanted.BLOCK_SIZE
    assert ours.shape == wanted.shape
    for counts, index in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        theirs = getattr(wanted, counts), getattr(wanted, index)
        made = getattr(ours, counts), getattr(ours, index)
        assert [part.dtype for part in made] == [torch.int32, torch.int32]
        assert [part.shape for part in made] == [part.shape for part in theirs]
        across = theirs[1].shape[3]
        assert torch.equal(dense_blocks(*made, across), dense_blocks(*theirs, across))
    assert torch.equal(ours.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("name", PATTERNS)
def test_block_mask_of_patterns(name: str):
    for block_size in (16, (16, 8), (8, 24)):
        check_block_mask(pattern_mask(name), block_size)


@examples(25)
@given(mask=band_masks(max_groups=2) | grid_masks())
def test_block_mask_of_any_mask(mask: Mask):
    check_block_mask(mask, (16, 8))


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Float64 attention of (H, S, D) tensors; rows without a key give zeros."""
    scores = (q.double() @ k.double().mT) * q.shape[-1] ** -0.5
    return torch.nan_to_num(scores.masked_fill(~visible, -torch.inf).softmax(-1)) @ v.double()


@pytest.fixture(scope="module")
def compiled():
    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False)


# one mask for each way in which `mask_mod` works, at lengths that blocks divide and do not
@pytest.mark.parametrize(
    "mask",
    [
        pattern_mask("causal_document"),
        pattern_mask("prefix_lm"),
        uniform_grid(96, 16, 16, 2, seed=0),
        pattern_mask("block_sparse_variable"),
    ],
    ids=["rows", "arithmetic", "uniform", "variable"],
)
@pytest.mark.slow  # tests/kernels/test_contract_kernels.py compiles it in the default run
def test_the_compiled_kernel_takes_it(compiled, mask: Mask):
    heads = 4
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, heads, mask.seqlen_q, 16, generator=generator)
    k, v = torch.randn(2, 1, 2, mask.seqlen_k, 16, generator=generator)
    with torch.no_grad():
        out = compiled(q, k, v, block_mask=block_mask(mask, "cpu", heads, 32), enable_gqa=True)
    visible = torch.from_numpy(rasters(mask)).repeat_interleave(heads // mask.num_groups, 0)
    wanted = attended(q[0], k[0].repeat_interleave(2, 0), v[0].repeat_interleave(2, 0), visible)
    torch.testing.assert_close(out[0].double(), wanted, atol=1e-5, rtol=1e-5)
