"""Packed documents as trainers have them, against their definition pair by pair."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import UserError
from longca.masks import Mask
from longca.masks.band import INF
from longca.masks.forms import packed
from tests.helpers.masks.strategies import quick

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=5)
WINDOWS = st.tuples(st.integers(-1, 4), st.integers(-1, 4))


def definition(lengths_q, lengths_k, extra_q=0, extra_k=0, causal=False, window=(-1, -1), itself=False):
    """Bool (queries, keys), document by document: windows are aligned at the last query and the last key."""
    raster = np.zeros((sum(lengths_q) + extra_q, sum(lengths_k) + extra_k), dtype=bool)
    first_q = first_k = 0
    for length_q, length_k in zip(lengths_q, lengths_k, strict=True):
        for i in range(length_q):
            for j in range(length_k):
                ahead = (length_q - i) - (length_k - j)
                right = 0 if causal else window[1]
                visible = (window[0] < 0 or -ahead <= window[0]) and (right < 0 or ahead <= right)
                raster[first_q + i, first_k + j] = visible
        first_q = first_q + length_q
        first_k = first_k + length_k
    if itself:
        raster[range(first_q, first_q + extra_q), range(first_k, first_k + extra_k)] = True
    return raster


def bounds(lengths):
    return [0, *np.cumsum(lengths).tolist()]


def there_and_back(mask):
    form = mask.to_cu_seqlens()
    return Mask.from_cu_seqlens(form.cu_seqlens, cu_seqlens_k=form.cu_seqlens_k, window=form.window)


@quick
@given(LENGTHS, st.integers(0, 4), st.booleans(), WINDOWS, st.sampled_from(["nothing", "self"]))
def test_cu_seqlens_with_padding(lengths, extra, causal, window, padding):
    total = sum(lengths) + extra
    if total == 0:
        return
    mask = Mask.from_cu_seqlens(bounds(lengths), causal=causal, window=window, seqlen=total, padding=padding)
    expected = definition(lengths, lengths, extra, extra, causal, window, padding == "self")
    assert np.array_equal(mask.dense(), expected)
    assert mask.area == expected.sum() and mask.traits.empty_rows == (not expected.any(axis=1).all())
    assert there_and_back(mask) == mask


@quick
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    WINDOWS,
)
def test_cu_seqlens_of_queries_and_of_keys(lengths, extra_q, extra_k, causal, window):
    lengths_q, lengths_k = zip(*lengths, strict=True)
    totals = sum(lengths_q) + extra_q, sum(lengths_k) + extra_k
    if min(totals) == 0:
        return
    mask = Mask.from_cu_seqlens(
        bounds(lengths_q),
        cu_seqlens_k=bounds(lengths_k),
        causal=causal,
        window=window,
        seqlen=totals[0],
        seqlen_k=totals[1],
    )
    assert np.array_equal(mask.dense(), definition(lengths_q, lengths_k, extra_q, extra_k, causal, window))
    again = there_and_back(mask)
    assert again == mask and (again.seqlen_q, again.seqlen_k) == totals


@quick
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6), st.booleans(), WINDOWS)
def test_document_ids_with_padding_anywhere(runs, causal, window):
    ids = [
        7 * number if is_document else -1
        for number, (length, is_document) in enumerate(runs)
        for _ in range(length)
    ]
    expected = np.array([[query == key != -1 for key in ids] for query in ids])
    offset = np.arange(len(ids))[None] - np.arange(len(ids))[:, None]
    right = 0 if causal else window[1]
    expected &= (window[0] < 0) | (-offset <= window[0])
    expected &= (right < 0) | (offset <= right)
    mask = Mask.from_document_ids(ids, causal=causal, window=window)
    assert np.array_equal(mask.dense(), expected)
    assert there_and_back(mask) == mask
    itself = Mask.from_document_ids(ids, causal=causal, window=window, padding="self")
    assert np.array_equal(itself.dense(), expected | np.diag(np.array(ids) == -1))
    assert there_and_back(itself) == itself


@quick
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 3))
def test_one_batch_in_each_way(lengths, extra):
    """The same mask, whichever way a trainer describes it."""
    wanted = Mask.from_documents(lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    ids = np.repeat(np.arange(len(lengths)), lengths)
    assert (
        wanted
        == Mask.from_cu_seqlens(bounds(lengths), causal=True)
        == Mask.from_document_ids(ids)
        == Mask.from_position_ids(positions)
    )
    assert (
        wanted
        == Mask.from_cu_seqlens(bounds(lengths), cu_seqlens_k=bounds(lengths), causal=True)
        == there_and_back(wanted)
    )
    total = sum(lengths) + extra
    for padding in ("nothing", "self"):
        padded = Mask.from_cu_seqlens(bounds(lengths), causal=True, seqlen=total, padding=padding)
        assert (
            padded == Mask.from_document_ids([*ids, *[-1] * extra], padding=padding) == there_and_back(padded)
        )
        assert padded == Mask.from_position_ids(positions, seqlen=total, padding=padding)
        assert padded.documents is not None and padded.documents.tolist() == lengths
    assert padded == Mask.from_position_ids([*positions, *[0] * extra])


def test_documents_of_one_token_and_one_diagonal_stay_what_they_are():
    """They have the same pairs, in other bands."""
    documents = Mask.from_documents([1, 1, 1])
    diagonal = Mask.from_windows(3, (0, 0))
    assert documents.to_cu_seqlens().cu_seqlens.tolist() == [0, 1, 2, 3]
    assert diagonal.to_cu_seqlens().cu_seqlens.tolist() == [0, 3]
    assert there_and_back(documents) == documents != diagonal == there_and_back(diagonal)


def test_a_position_that_does_not_go_up_by_one_begins_a_document():
    assert Mask.from_position_ids([3, 4, 5, 9, 10, 2, 0, 1]) == Mask.from_documents([3, 2, 1, 2])


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, torch.tensor, lambda values: torch.tensor(values, dtype=torch.int32)]
)
def test_any_array(kind):
    wanted = Mask.from_documents([3, 5])
    assert (
        wanted
        == Mask.from_cu_seqlens(kind([0, 3, 8]), causal=True)
        == Mask.from_document_ids(kind([4] * 3 + [2] * 5))
    )
    assert wanted == Mask.from_position_ids(kind([0, 1, 2, 0, 1, 2, 3, 4]))


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, torch.tensor, lambda rows: [torch.tensor(row) for row in rows]]
)
def test_rows_are_a_list_of_masks(kind):
    wanted = [Mask.from_documents([3, 5]), Mask.from_documents([8])]
    assert Mask.from_cu_seqlens(kind([[0, 3, 8], [0, 8, 8]]), causal=True) == wanted
    assert Mask.from_document_ids(kind([[0] * 3 + [1] * 5, [0] * 8])) == wanted
    assert Mask.from_position_ids(kind([[0, 1, 2, 0, 1, 2, 3, 4], list(range(8))])) == wanted
    assert Mask.from_document_ids(kind([[0] * 8])) == wanted[1:]


def test_rows_of_different_lengths():
    first, second = Mask.from_cu_seqlens([[0, 3], [0, 4, 6]], seqlen=8)
    assert (first, second) == (
        Mask.from_cu_seqlens([0, 3], seqlen=8),
        Mask.from_cu_seqlens([0, 4, 6], seqlen=8),
    )
    [crossed] = Mask.from_cu_seqlens([[0, 3, 8]], cu_seqlens_k=torch.tensor([[0, 1, 4]]))
    assert crossed == Mask.from_cu_seqlens([0, 3, 8], cu_seqlens_k=[0, 1, 4])


def test_padding_that_sees_itself_needs_no_memory_for_each_token(monkeypatch):
    mask = Mask.from_cu_seqlens([0, 3], seqlen="1024M", padding="self")
    assert np.asarray(mask.bands).tolist() == [[0, 3, 0, 3, -INF, INF], [3, 1 << 30, 3, 1 << 30, 0, 0]]
    ids = [-1, -1, 0, 0, -1, -1, -1, 1, -1]
    single = Mask.from_document_ids(ids, padding="self")
    monkeypatch.setattr(packed, "MOST_SINGLE", 2)
    runs = Mask.from_document_ids(ids, padding="self")
    assert np.array_equal(runs.dense(), single.dense()) and len(runs.bands) < len(single.bands)


def test_padding_is_not_a_document():
    mask = Mask.from_cu_seqlens([0, 3, 3, 8], seqlen=20, causal=True)
    assert mask.documents is not None and mask.documents.tolist() == [3, 5]
    assert mask.crop((0, 8), (0, 8)).documents is None
    assert Mask.from_cu_seqlens([0, 0], seqlen=4).documents is None
    form = mask.to_cu_seqlens()
    assert form.cu_seqlens.tolist() == [0, 3, 8, 20, 20]
    assert form.cu_seqlens_k is not None and form.cu_seqlens_k.tolist() == [0, 3, 8, 8, 20]
    assert (form.max_seqlen, form.max_seqlen_k, form.window) == (12, 12, (-1, 0))


def test_a_block_map_of_different_numbers_of_queries_and_keys():
    mask = Mask.from_block_map([3, 5], [1, 4], np.eye(2, dtype=bool))
    form = mask.to_cu_seqlens()
    assert form.cu_seqlens.tolist() == [0, 3, 8] and form.cu_seqlens_k is not None
    assert np.array_equal(there_and_back(mask).dense(), mask.dense())


def test_no_keys_differ_from_the_queries_of_plain_segments():
    assert Mask.from_documents([3, 5]).to_cu_seqlens().cu_seqlens_k is None


def test_what_no_segments_are_is_refused():
    for mask in (
        Mask.from_bands(8, [(0, 4, 4, 8, -9, 9), (4, 8, 0, 4, -9, 9)]),
        Mask.from_windows(8, (1, 0), (2, 0)),
        Mask.from_bands(8, [(0, 3, 0, 3, -1, 0), (3, 7, 3, 7, -2, 0)]),
        Mask.from_bands(6, [(0, 4, 0, 2, -9, 9), (0, 4, 3, 5, -9, 9)]),
    ):
        with pytest.raises(
            UserError,
            match=r"cu_seqlens cannot hold <Mask .*: the mask is not a row of segments under one window",
        ):
            mask.to_cu_seqlens()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mask.from_cu_seqlens([0, 5, 9], seqlen=8), "seqlen is 8, and the documents have 9 tokens"),
        (lambda: Mask.from_cu_seqlens([0, 5], seqlen="8Q"), "'8Q' is not a length"),
        (
            lambda: Mask.from_cu_seqlens([0, 5], cu_seqlens_k=[0, 2, 5]),
            "must be of the same documents, and they are of 1 and 2",
        ),
        (lambda: Mask.from_cu_seqlens([0, 5], cu_seqlens_k=[1, 5]), "cu_seqlens_k must begin with 0"),
        (
            lambda: Mask.from_cu_seqlens([0, 5], cu_seqlens_k=[0, 5], seqlen=7, padding="self"),
            "cannot see themselves where 2 queries and 0 keys are padding",
        ),
        (
            lambda: Mask.from_cu_seqlens([0, 5], padding="none"),
            "padding is 'nothing' or 'self', what its tokens see, and it is 'none'",
        ),
        (
            lambda: Mask.from_cu_seqlens([0, 5], padding=np.array(["self", "nothing"])),  # type: ignore[arg-type]
            r"padding is 'nothing' or 'self', what its tokens see, and it is array\(",
        ),
        (lambda: Mask.from_cu_seqlens(np.array([0, 2**63 - 1, 1 - 2**63])), "must begin with 0, never fall"),
        (lambda: Mask.from_cu_seqlens([0, 2**70]), f"whole numbers below 2.63, and {2**70} is among them"),
        (
            lambda: Mask.from_cu_seqlens([[0, 5], [0, 4, 2]]),
            "These cu_seqlens of row 1 are no mask: cu_seqlens must begin with 0, never fall",
        ),
        (
            lambda: Mask.from_cu_seqlens([[0, 5], [0, 5]], cu_seqlens_k=[[0, 5]]),
            "2 rows of cu_seqlens and 1 of cu_seqlens_k",
        ),
        (lambda: Mask.from_cu_seqlens(np.zeros((0, 3), int)), "no rows"),
        (lambda: Mask.from_cu_seqlens(torch.tensor([0, 3.5])), "whole numbers, and they are float32"),
        (
            lambda: Mask.from_cu_seqlens(torch.tensor([0, 3], dtype=torch.bfloat16)),
            "a tensor of torch.bfloat16 on cpu, which cannot be read",
        ),
        (
            lambda: Mask.from_cu_seqlens(torch.empty(3, dtype=torch.int32, device="meta")),
            "torch.int32 on meta, which cannot be read",
        ),
        (
            lambda: Mask.from_document_ids([0, 0, 3, 3, 0, 0]),
            "id 0 of token 0 comes back at token 4: sort the tokens by document, or give padding_id=0 where "
            "it marks padding",
        ),
        (
            lambda: Mask.from_document_ids(np.zeros((2, 2, 2), int)),
            r"must be \(tokens,\), or \(rows, tokens\) for a list of masks",
        ),
        (lambda: Mask.from_document_ids([0, 1], padding_id="x"), "'padding_id' is 'x'. Give a whole number"),
        (lambda: Mask.from_document_ids([]), "1 to 2147483647 queries"),
        (lambda: Mask.from_document_ids([True, False]), "whole numbers, and they are bool"),
        (
            lambda: Mask.from_position_ids([0, 1, -1]),
            "at least 0, and -1 is among them: mark padding by document ids, or leave it out",
        ),
        (lambda: Mask.from_position_ids([0, 1, 2], seqlen=2), "seqlen is 2, and the documents have 3 tokens"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["false", "no", None, 2, 1.0, np.array([True])])
def test_causal_is_true_or_false_and_nothing_that_counts_as_it(value: object) -> None:
    for make in (
        lambda: Mask.from_cu_seqlens([0, 4, 8], causal=value),  # type: ignore[arg-type]
        lambda: Mask.from_documents([4, 4], causal=value),  # type: ignore[arg-type]
        lambda: Mask.from_flashmask(np.full((1, 1, 8, 1), 8), causal=value),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=r"Argument 'causal' is .*[Gg]ive True or False"):
            make()


@pytest.mark.parametrize("value", [True, 1, np.True_, np.int64(1)])
def test_numbers_of_truth_are_taken(value: bool) -> None:
    assert Mask.from_documents([4, 4], causal=value).area == 20
