"""Modules without a test of the chosen marks are not imported."""

from pathlib import Path

import pytest

from tests.helpers.collection import OWN, is_left_out
from tests.helpers.support import ROOT

USUAL = "not long and not slow"
LONG = "long and not slow"
ONE_LONG = "import pytest\n\n\n@pytest.mark.long\ndef test_it(): ...\n"
ALL_LONG = "import pytest\n\npytestmark = pytest.mark.long\n\n\ndef test_it(): ...\n"
ALL_LONG_IN_A_LIST = "pytestmark = [\n    pytest.mark.skipif(not X),\n    pytest.mark.long,\n]\n"
PLAIN = "def test_it(): ...\n"


@pytest.mark.parametrize(
    ("module", "chosen", "left_out"),
    [
        (PLAIN, USUAL, False),
        (ONE_LONG, USUAL, False),
        (ALL_LONG, USUAL, True),
        (ALL_LONG_IN_A_LIST, USUAL, True),
        (PLAIN, LONG, True),
        ("from tests.a import pytestmark\n\n" + PLAIN, LONG, False),
        (ONE_LONG, LONG, False),
        (ALL_LONG_IN_A_LIST, LONG, False),
        (PLAIN, "slow", False),  # a case may be slow by a fixture of another module
        (PLAIN, "long or slow", False),
        (ALL_LONG, "not (long or slow)", False),
        (PLAIN, "", False),
    ],
)
def test_which(module: str, chosen: str, left_out: bool):
    assert is_left_out(module, chosen) == left_out


def test_these_marks_stand_beside_their_tests():
    others: list[Path] = [path for path in ROOT.glob("tests/**/*.py") if not path.name.startswith("test_")]
    for path in others:
        text = path.read_text(encoding="utf-8")
        assert not any(f"mark.{name}" in text for name in OWN), path
