"""Numbers as people read them."""

import math

import pytest

from longca.lab.store.text import format_bytes, number, percent, plural


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0613, "0.0613"),
        (12.345, "12.3"),
        (1234.5, "1,230"),
        (0.9996, "1.00"),
        (999.6, "1,000"),
        (0.0000123, "1.2e-5"),
        (0, "0"),
        (-2.5, "-2.50"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_other_forms():
    assert percent(0.0213) == "2.1 %" and percent(None) == "–"
    assert [format_bytes(value) for value in (0, 1536, 3 << 30, None)] == ["0 B", "1.50 KiB", "3.00 GiB", "–"]
    assert [plural(1, "cell"), plural(1200, "pair of shoes")] == ["1 cell", "1,200 pairs of shoes"]
