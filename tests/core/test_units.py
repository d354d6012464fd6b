"""Lengths and head counts as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.core.errors import by_numbers, format_length, parse_heads, parse_length


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [
        (1, 1),
        (8192, 8192),
        ("8192", 8192),
        ("8K", 8192),
        ("8k", 8192),
        (" 8 K ", 8192),
        ("1M", 1 << 20),
        ("768K", 786_432),
    ],
)
def test_lengths(text: int | str, num_tokens: int):
    assert parse_length(text) == num_tokens


@pytest.mark.parametrize(
    "text", [0, -4, "0", "-4", "0K", "", "K", "8Q", "8KB", "1.5K", 1.5, "1e3", "8 192", True, None, "eight"]
)
def test_not_lengths(text: object):
    with pytest.raises(ValueError, match="is not a length: use a whole number of at least 1"):
        parse_length(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_tokens", "text"),
    [
        (1, "1"),
        (1023, "1023"),
        (1024, "1K"),
        (1500, "1500"),
        (786_432, "768K"),
        (1 << 20, "1M"),
        ((1 << 20) + 1024, "1025K"),
    ],
)
def test_lengths_in_tables(num_tokens: int, text: str):
    assert format_length(num_tokens) == text


@given(st.integers(1, 1 << 40))
def test_what_is_shown_can_be_read(num_tokens: int):
    assert parse_length(format_length(num_tokens)) == num_tokens


@pytest.mark.parametrize(
    ("text", "heads"), [("64:8", (64, 8)), ("8", (8, 8)), (8, (8, 8)), (" 4 : 2 ", (4, 2)), ("5:5", (5, 5))]
)
def test_heads(text: str | int, heads: tuple[int, int]):
    assert parse_heads(text) == heads


@pytest.mark.parametrize(
    "text", ["", ":", "8:", ":8", "8:0", "0:0", "-8:2", "8:2:1", "8/2", "8.0:2", True, None]
)
def test_not_heads(text: object):
    with pytest.raises(ValueError, match="is not a head count: use QUERY:KV"):
        parse_heads(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["3:2", "8:16", "64:48"])
def test_heads_that_cannot_be_shared(text: str):
    with pytest.raises(ValueError, match="query heads cannot be shared evenly among"):
        parse_heads(text)


def test_texts_are_sorted_by_their_numbers():
    ordered = [
        "",
        "64:8 heads",
        "64:64 heads",
        "256 new tokens",
        "1K new tokens",
        "16K new tokens",
        "H200 b2",
    ]
    assert sorted(sorted(ordered), key=by_numbers) == ordered != sorted(ordered)
