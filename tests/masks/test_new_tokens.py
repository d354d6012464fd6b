"""Masks of the last queries of a longer sequence, and the window that kernels align at the bottom right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import UserError
from longca.kernels.contract import unfit_mask
from longca.lowering.varlen import rectangle
from longca.masks import Mask, build_mask, draw_again
from tests.helpers.masks.strategies import PATTERNS, arguments, quick

OWN_ROWS = "speculative_tree"  # its tree has as many tokens as are new


@pytest.mark.parametrize("name", [name for name in PATTERNS if name != OWN_ROWS])
@quick
@given(data=st.data())
def test_new_tokens_see_what_they_see_in_the_whole_sequence(name, data):
    seqlen = data.draw(st.integers(1, 48))
    given_values = data.draw(arguments(name, seqlen))
    count = data.draw(st.integers(1, seqlen))
    try:
        whole = build_mask(name, seqlen=seqlen, **given_values)
    except UserError:
        return  # these parameters do not fit this length
    mask = build_mask(name, seqlen=seqlen, new_tokens=count, **given_values)
    expected = whole.dense()[..., seqlen - count :, :]
    assert (mask.seqlen_q, mask.seqlen_k) == (count, seqlen)
    assert np.array_equal(mask.dense(), expected)
    assert mask.area == expected.sum()


@quick
@given(st.integers(1, 40), st.data())
def test_a_drafted_token_sees_the_context_and_the_tokens_above_it(seqlen, data):
    count = data.draw(st.integers(1, seqlen))
    branches = data.draw(st.integers(1, 3))
    levels = data.draw(st.integers(1, 6))
    order = data.draw(st.sampled_from(["depth", "breadth"]))
    mask = build_mask(
        OWN_ROWS, seqlen=seqlen, new_tokens=count, branches=branches, levels=levels, order=order
    )
    context = seqlen - count
    visible = mask.dense()
    assert visible[:, :context].all()
    tree = visible[:, context:]
    above = [set(np.flatnonzero(row)) for row in tree]
    for token, seen in enumerate(above):
        assert token in seen and max(seen) == token and len(seen) <= levels
        assert all(above[other] <= seen for other in seen)
        followers = [other for other in range(count) if sorted(above[other])[:-1] == sorted(seen)]
        assert len(followers) <= branches


@pytest.mark.parametrize("seed", [0, 5])
def test_another_draw_has_as_many_new_tokens(seed):
    mask = build_mask("causal_document", seqlen=4096, new_tokens=300, seed=seed)
    assert mask.origin is not None
    assert draw_again(mask.origin, seed) == mask
    assert draw_again(mask.origin, seed + 1).seqlen_q == 300


@pytest.mark.parametrize(
    ("name", "params", "window"),
    [
        ("causal", {}, (-1, 0)),
        ("full", {}, (-1, -1)),
        ("causal_sliding_window", {"window": 7}, (7, 0)),
        ("causal_sliding_window", {"window": 0}, (0, 0)),
        ("causal_sliding_window", {"window": 64}, (-1, 0)),
        ("sliding_window", {"window": 9}, (9, 9)),
        ("sink_local", {"num_sinks": 2, "window": 7}, None),
        ("causal_document", {"documents": [50, 14]}, None),
        (OWN_ROWS, {}, None),
    ],
)
@pytest.mark.parametrize("count", [2, 13, 63])
def test_a_window_of_the_last_queries_is_aligned_at_the_bottom_right(name, params, window, count):
    mask = build_mask(name, seqlen=64, new_tokens=count, **params)
    actual = mask.traits.tail_window
    if window is None:
        assert actual is None
        assert "more keys than queries" in str(unfit_mask(mask.traits, tails=True))
        return
    assert actual is not None and unfit_mask(mask.traits, tails=True) is None
    assert (unfit_mask(mask.traits) is None) == mask.traits.full
    packed = rectangle(mask)
    assert (packed.cu_seqlens.tolist(), packed.max_seqlen) == ([0, count], count)
    left, right = packed.window
    offset = np.arange(64) - (np.arange(count) + 64 - count)[:, None]  # FlashAttention's definition
    expected = ((left < 0) | (offset >= -left)) & ((right < 0) | (offset <= right))
    assert np.array_equal(mask.dense(), expected)
    assert actual == window or count == 2, "a bound without effect may be left out"


def test_other_rectangles_have_no_such_window():
    square = build_mask("causal", seqlen=64)
    for rows, cols in (((0, 32), (0, 64)), ((32, 64), (0, 32)), ((16, 48), (0, 64))):
        part = square.crop(rows, cols)
        assert part.traits.tail_window is None or part.traits.full, (rows, cols)
    assert square.traits.tail_window is None
    assert Mask.from_bands(8, [(0, 8, 4, 16, -np.inf, 8)], seqlen_k=16).traits.tail_window is None


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "cannot have 0 new ones"),
        (65, "cannot have 65 new ones"),
        ("64K", "cannot have 65536 new ones"),
        (-1, "cannot have -1 new ones"),
        (1.5, "cannot have 1.5 tokens"),
        ("few", "'few' is not a length"),
    ],
)
def test_refuses_other_numbers_in_one_line(count, message):
    with pytest.raises(UserError, match=message) as error:
        build_mask("causal", seqlen=64, new_tokens=count)
    assert "\n" not in str(error.value)
