"""Messages to users."""

import pytest

from longca.core.errors import UserError, nearest, unknown


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({}, "It broke"),
        ({"why": "it was old"}, "It broke: it was old"),
        ({"todo": "Buy another"}, "It broke. Buy another"),
        ({"why": "it was old", "todo": "Buy another"}, "It broke: it was old. Buy another"),
        ({"why": "was it old?", "todo": "Buy another"}, "It broke: was it old? Buy another"),
    ],
)
def test_one_line(parts: dict[str, str], line: str):
    assert str(UserError("It broke", **parts)) == line
    assert UserError.exit_code == 2


def test_nearest_is_best_first_and_few():
    known = ["causal", "causal_document", "causal_blockwise", "causal_sliding_window", "full", "prefix_lm"]
    assert nearest("causl", known)[0] == "causal"
    assert len(nearest("causal_", known)) == 3
    assert nearest("causal_dokument", known, 1) == ["causal_document"]
    assert nearest("xyz", known) == []


@pytest.mark.parametrize(
    ("known", "offer"),
    [
        (["causal", "full"], "did you mean 'causal'?"),
        (["b_wide", "a_long"], "known: a_long, b_wide"),
        ([], "there is none"),
    ],
)
def test_unknown_offers_what_there_is(known: list[str], offer: str):
    message = str(unknown("mask", "causul", known, todo="Look at the list"))
    assert message.startswith("Unknown mask 'causul': " + offer)
    assert message.endswith("Look at the list")
