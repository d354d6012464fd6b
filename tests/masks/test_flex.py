"""FlexAttention's BlockMask, held against torch's own evaluation of its `mask_mod`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    noop_mask,
    or_masks,
)

from longca.core.errors import UserError
from longca.lowering import evaluated
from longca.masks import Mask
from tests.helpers.kernels.masks_for_tests import rasters
from tests.helpers.support import examples

START = torch.tensor([2, 11, 20])
END = torch.tensor([7, 19, 33])
IDS = torch.tensor([[0] * 10 + [1] * 16 + [2] * 14, [0] * 23 + [1] * 17])
TABLE = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.4


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return IDS[b, q % 40] == IDS[b, k % 40]


MODS = {
    "causal": causal,
    "keys of a span": lambda b, h, q, k: (q >= k) & ((k >= START) & (k < END)).any(),
    "both in one span": lambda b, h, q, k: (
        (q >= k) | ((q >= START) & (q < END) & (k >= START) & (k < END)).any()
    ),
    "all": lambda b, h, q, k: torch.all(q >= k),
    "a sum over a table": lambda b, h, q, k: (q >= START).sum() == (k >= START).sum(),
    "a table of pairs": lambda b, h, q, k: TABLE[q % 64, k % 64],
    "gathered twice": lambda b, h, q, k: IDS[b, IDS[b, q % 40]] <= IDS[b, k % 40],
    "by head": lambda b, h, q, k: (q - k).abs() <= h + b,
    "and_masks": and_masks(causal, documents),
    "or_masks": or_masks(causal, documents),
    "noop": noop_mask,
    "of queries alone": lambda b, h, q, k: q % 3 == 0,
    "nothing": lambda b, h, q, k: q < 0,
    "argmax": lambda b, h, q, k: torch.stack([q, k, START[0]]).argmax() == 0,
}


@settings(examples(25), derandomize=True, deadline=None)
@given(
    st.sampled_from(sorted(MODS)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([8, 16, (8, 32), 128]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([7, 500, evaluated.MOST_ELEMENTS]),
)
def test_each_entry_and_head_as_torch_evaluates_it(
    name, seqlen_q, seqlen_k, block_size, batch, head, separate, elements
):
    mod = MODS[name]
    made = create_block_mask(
        mod, 2, 3, seqlen_q, seqlen_k, device="cpu", BLOCK_SIZE=block_size, separate_full_blocks=separate
    )
    truth = create_mask(mod, 2, 3, seqlen_q, seqlen_k, device="cpu").numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluated, "MOST_ELEMENTS", elements)  # tiles of a few pairs, too
        mask = Mask.from_block_mask(made, batch=batch, head=head)
        assert np.array_equal(mask.dense(), truth[batch, head])
        heads = rasters(Mask.from_block_mask(made, batch=batch))
    assert np.array_equal(np.repeat(heads, 3 // len(heads), axis=0), truth[batch])


def test_a_batch_of_one_needs_no_entry():
    made = create_block_mask(documents, None, None, 40, 40, device="cpu", BLOCK_SIZE=16)
    wanted = Mask.from_document_ids(IDS[0], causal=False)
    assert np.array_equal(Mask.from_block_mask(made).dense(), wanted.dense())
    assert Mask.from_block_mask(made, batch=0, head=0) == Mask.from_block_mask(made)


def test_captured_tensors_that_need_gradients():
    span = torch.tensor([3.5], requires_grad=True)
    made = create_block_mask(
        lambda b, h, q, k: (q - k <= span).all(), None, None, 20, 20, device="cpu", BLOCK_SIZE=8
    )
    assert Mask.from_block_mask(made) == Mask.from_dense(Mask.from_windows(20, (3, -1)).dense())


def test_only_partial_blocks_are_evaluated():
    """Lists decide about whole blocks, as in torch's kernels."""
    counts = torch.tensor([[[1, 0]]], dtype=torch.int32)
    blocks = torch.tensor([[[[1, 0], [0, 0]]]], dtype=torch.int32)
    full = torch.tensor([[[0, 1]]], dtype=torch.int32), torch.tensor([[[[0, 0], [0, 0]]]], dtype=torch.int32)
    asked = []

    def mod(b, h, q, k):
        asked.append(None)
        return q + 16 < k

    mask = Mask.from_block_mask(BlockMask.from_kv_blocks(counts, blocks, *full, BLOCK_SIZE=16, mask_mod=mod))
    expected = np.zeros((32, 32), dtype=bool)
    expected[:16, 16:] = np.subtract.outer(np.arange(16), np.arange(16)) < 0
    expected[16:, :16] = True
    assert np.array_equal(mask.dense(), expected) and asked


@pytest.mark.parametrize("seqlens", [(32, 64), (25, 50)])
def test_blocks_without_a_mask_mod_are_a_grid(seqlens):
    counts = torch.tensor([2, 1], dtype=torch.int32)
    blocks = torch.tensor([[3, 0, 9, 9], [1, 9, 9, 9]], dtype=torch.int32)
    made = BlockMask.from_kv_blocks(
        counts, blocks, BLOCK_SIZE=16, seq_lengths=seqlens, compute_q_blocks=False
    )
    mask = Mask.from_block_mask(made)
    assert mask.grid is not None and mask.grid.visible.tolist() == [
        [[True, False, False, True], [False, True, False, False]]
    ]
    expected = np.zeros((32, 64), dtype=bool)
    expected[:16, :16] = expected[:16, 48:] = expected[16:, 16:32] = True
    assert np.array_equal(mask.dense(), expected[: seqlens[0], : seqlens[1]])


def test_one_block_of_any_size():
    first = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    made = BlockMask.from_kv_blocks(*first, BLOCK_SIZE=1 << 30, mask_mod=causal, seq_lengths=(70, 90))
    assert np.array_equal(Mask.from_block_mask(made).dense(), np.tri(70, 90, dtype=bool))


def test_fewer_slots_than_blocks():
    made = BlockMask.from_kv_blocks(
        torch.tensor([[[1]]], dtype=torch.int32),
        torch.tensor([[[[2]]]], dtype=torch.int32),
        BLOCK_SIZE=16,
        seq_lengths=(16, 48),
        compute_q_blocks=False,
    )
    assert Mask.from_block_mask(made).dense().sum(axis=0).tolist() == [0] * 32 + [16] * 16


def test_a_slice_of_the_batch():
    batch = create_block_mask(and_masks(causal, documents), 2, None, 40, 40, device="cpu", BLOCK_SIZE=16)
    with pytest.raises(
        UserError,
        match=r"it is a slice, .*: give the whole BlockMask and name the entry, as from_block_mask\(",
    ) as error:
        Mask.from_block_mask(batch[1])
    assert "\n" not in str(error.value)
    whole_blocks = create_block_mask(
        lambda b, h, q, k: (q // 8 + b) % 2 == k // 8 % 2, 2, None, 32, 32, device="cpu", BLOCK_SIZE=8
    )
    assert np.array_equal(
        Mask.from_block_mask(whole_blocks[1]).dense(), Mask.from_block_mask(whole_blocks, batch=1).dense()
    )


def test_a_slice_whose_mask_mod_was_set_is_called_as_torch_calls_it():
    """With the indices of the slice: entry 0 of a batch of 1, query 0 of its first block."""
    batch = create_block_mask(and_masks(causal, documents), 2, None, 40, 40, device="cpu", BLOCK_SIZE=8)
    part = batch[1, :, 2:3]
    part.seq_lengths = 8, 40
    part.mask_mod = lambda b, h, q, k: batch.mask_mod(b + 1, h, q + 16, k)
    assert np.array_equal(
        Mask.from_block_mask(part).dense(), Mask.from_block_mask(batch, batch=1).dense()[16:24]
    )


BATCH = create_block_mask(documents, 2, 3, 40, 40, device="cpu", BLOCK_SIZE=16)


def listed(mod=None, counts=((1, 1),), blocks=(((0, 0), (1, 0)),), **options):
    tables = torch.tensor([counts], dtype=torch.int32), torch.tensor([blocks], dtype=torch.int32)
    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=16, mask_mod=mod, compute_q_blocks=False, **options)


def changed(**attributes):
    made = listed()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def branching(b, h, q, k):
    return q >= k if q > 3 else q == k


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Mask.from_block_mask(BATCH),
            r"it has 2 batch entries, .*: give from_block_mask\(block_mask, batch=0\) to batch=1",
        ),
        (lambda: Mask.from_block_mask(BATCH, batch=2), "there is no batch entry 2: they are 0 to 1"),
        (lambda: Mask.from_block_mask(BATCH, batch=-1), "Argument 'batch' is -1"),
        (lambda: Mask.from_block_mask(BATCH, batch=0, head=3), "there is no head 3: they are 0 to 2"),
        (
            lambda: Mask.from_block_mask(listed(), batch=1),
            "there is no batch entry 1: there is one, 0, which stands for all of them",
        ),
        (
            lambda: Mask.from_block_mask(listed(branching)),
            "its mask_mod cannot be evaluated pair by pair, as torch does it: .*data-dependent",
        ),
        (
            lambda: Mask.from_block_mask(listed(lambda b, h, q, k: True)),
            "cannot be evaluated pair by pair, as torch does it",
        ),
        (
            lambda: Mask.from_block_mask(listed(lambda b, h, q, k: q - k)),
            "must give one bool for each pair, and it gives torch.int64",
        ),
        (
            lambda: Mask.from_block_mask(listed(lambda b, h, q, k: q >= START)),
            r"and it gives torch.bool of the shape \(3,\)",
        ),
        (lambda: Mask.from_block_mask(listed(lambda b, h, q, k: {}[1])), "as torch does it: 1"),
        (
            lambda: Mask.from_block_mask(listed(seq_lengths=(64, 32))),
            "its lists are for 2 × 16 queries, and its seq_lengths say 64",
        ),
        (
            lambda: Mask.from_block_mask(listed(seq_lengths=(32, 16))),
            "its lists name k-block 1, and 16 keys are blocks 0 to 0 of 16",
        ),
        (lambda: Mask.from_block_mask(listed(counts=((2, 1),))), "name a block twice"),
        (lambda: Mask.from_block_mask(BATCH.to("meta"), batch=0), "on meta, which cannot be read"),
        (
            lambda: Mask.from_block_mask(changed(seq_lengths=None)),
            "its seq_lengths must be two whole numbers",
        ),
        (
            lambda: Mask.from_block_mask(changed(seq_lengths=(32.0, 32.0))),
            r"its seq_lengths must be two whole numbers, and it is \(32.0, 32.0\)",
        ),
        (
            lambda: Mask.from_block_mask(changed(BLOCK_SIZE=("a", 16))),
            "its BLOCK_SIZE must be two whole numbers",
        ),
        (
            lambda: Mask.from_block_mask(changed(BLOCK_SIZE=(0, 16))),
            r"a block has at least 1 query and key, and its BLOCK_SIZE is \(0, 16\)",
        ),
    ],
)
def test_what_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_memory_is_bounded_where_each_pair_needs_much():
    many = torch.arange(3000)

    def mod(b, h, q, k):
        return ((q >= many) & (k >= many)).sum() % 2 == 0

    blocks = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    made = BlockMask.from_kv_blocks(blocks[..., 0] + 1, blocks, BLOCK_SIZE=128, mask_mod=mod)
    test = evaluated.PairTest(mod, 0, 0, (128, 128), torch.device("cpu"))
    assert test.most_pairs() <= evaluated.MOST_ELEMENTS // 3000
    index = np.arange(128)
    assert np.array_equal(Mask.from_block_mask(made).dense(), (np.minimum.outer(index, index) + 1) % 2 == 0)
