"""`longca.attention` under masks of packed batches, of BlockMasks and of block maps, against their definition
in float64."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import longca
from longca.core.errors import UserError
from longca.masks import Mask
from tests.helpers.kernels.plain_attention import plain_attention

IDS = torch.tensor([[4] * 9 + [-1] * 3 + [5] * 12, [1] * 20 + [-1] * 4])
CU = torch.tensor([0, 5, 5, 17], dtype=torch.int32)


def packed(b, h, q, k):
    return (IDS[b, q] == IDS[b, k]) & (IDS[b, q] >= 0) & (q >= k)


MASKS = {
    "padding": Mask.from_cu_seqlens(CU, causal=True, seqlen=24),
    "padding that sees itself": Mask.from_cu_seqlens(CU, causal=True, seqlen=24, padding="self"),
    "other keys": Mask.from_cu_seqlens(CU, cu_seqlens_k=[0, 3, 9, 30], causal=True, seqlen=24, seqlen_k=32),
    "ids": Mask.from_document_ids(IDS[0], window=(4, 0)),
    "positions": Mask.from_position_ids([0, 1, 2, 0, 1, 0, 0, 1], seqlen=11, causal=False),
    "a BlockMask": Mask.from_block_mask(
        create_block_mask(packed, 2, None, 24, 24, device="cpu", BLOCK_SIZE=8), batch=1
    ),
    "a block map": Mask.from_block_map(
        [7, 0, 9], [5, 6, 10], np.array([[[1, 0, 1], [1, 1, 1], [0, 0, 0]], [[0, 1, 1]] * 3]) > 0
    ),
}


def inputs(mask: Mask, batch: tuple[int, ...] = ()) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shapes = (mask.seqlen_q, 4), (mask.seqlen_k, 2), (mask.seqlen_k, 2), (mask.seqlen_q, 4)
    return [torch.randn(*batch, *shape, 8, generator=random, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_attention_by_its_definition(name: str, dtype: torch.dtype):
    mask = MASKS[name]
    q, k, v, dout = (x.to(dtype).requires_grad_() for x in inputs(mask))
    out, lse = longca.attention(q, k, v, mask, return_lse=True)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    plain = plain_attention(q, k, v, dout, mask.dense())
    for actual, wanted in zip((out, lse, *grads), (plain.out, plain.lse, *plain.grads), strict=True):
        torch.testing.assert_close(actual.detach().double(), wanted, rtol=1e-5, atol=1e-5)
    rows = mask.dense().reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k).any(axis=2)
    empty = torch.from_numpy(~rows).T.repeat_interleave(4 // mask.num_groups, 1)
    assert empty.any() == (name != "padding that sees itself")
    assert not out[empty].any() and not grads[0][empty].any() and (lse[empty] == -torch.inf).all()


@pytest.mark.parametrize("kernel", [None, "naive"])
def test_a_batch_with_a_mask_for_each_entry(kernel: str | None):
    masks = Mask.from_document_ids(IDS)
    q, k, v, dout = (x.float().requires_grad_() for x in inputs(masks[0], (2,)))
    out, lse = longca.attention(q, k, v, masks, return_lse=True, kernel=kernel)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    for entry, mask in enumerate(masks):
        plain = plain_attention(q[entry], k[entry], v[entry], dout[entry], mask.dense())
        wanted = (plain.out, plain.lse, *plain.grads)
        for actual, expected in zip((out, lse, *grads), wanted, strict=True):
            torch.testing.assert_close(actual[entry].detach().double(), expected, rtol=1e-5, atol=1e-5)
    as_tuple = longca.attention(q, k, v, tuple(masks), kernel=kernel)
    torch.testing.assert_close(as_tuple, out, rtol=0, atol=0)


CAUSAL = Mask.from_windows(24, (-1, 0))


@pytest.mark.parametrize(
    ("batch", "masks", "message"),
    [
        (
            (2,),
            [CAUSAL],
            r"1 masks are for a batch of as many entries, and q is \(2, 24, 4, 8\). Give \(batch, tokens, "
            r"heads, D\) and a mask",
        ),
        ((), [CAUSAL] * 24, r"24 masks are for a batch of as many entries, and q is \(24, 4, 8\)"),
        ((2,), [], "0 masks are for a batch"),
        ((2,), [CAUSAL, "causal"], "The mask must be a longca.Mask, and it is a list of str"),
        (
            (2,),
            [CAUSAL, Mask.from_windows(20, (-1, 0))],
            "The mask is over 20 queries × 20 keys, and q and k have 24 and 24 tokens",
        ),
        (
            (2,),
            [CAUSAL, Mask.from_windows(24, *[(1, 0)] * 3)],
            "2 KV heads cannot share a mask of 3 head groups evenly",
        ),
        (
            (),
            Mask.from_cu_seqlens(CU, causal=True),
            r"Give Mask.from_cu_seqlens\(…, seqlen=24\) where the tokens behind the last document are",
        ),
    ],
)
def test_masks_that_do_not_fit_are_refused_in_one_line(
    batch: tuple[int, ...], masks: list[Mask], message: str
):
    q, k, v, _ = inputs(CAUSAL, batch)
    with pytest.raises(UserError, match=message) as error:
        longca.attention(q, k, v, masks)
    assert "\n" not in str(error.value)
