"""The source of a claim, in words."""

import pytest

from longca.lab.claims.contract import all_claims


def test_a_source_is_said_once():
    """Each source of the study's claims says by itself that it is a text about the paper."""
    assert {claim.source_text for claim in all_claims()} == {claim.source for claim in all_claims()}


@pytest.mark.parametrize(
    ("trust", "source", "said"),
    [
        ("second-hand", "Our blog", "Our blog (a text about the paper)"),
        ("paper", "Texts of the paper, table 3", "Texts of the paper, table 3 (the paper's own text)"),
        ("reading of its code", "bench.py", "bench.py (its released code)"),
    ],
)
def test_how_it_is_known_is_said_where_the_source_does_not(trust: str, source: str, said: str):
    claim = type(all_claims()[0])()
    claim.trust, claim.source = trust, source  # type: ignore[assignment]
    assert claim.source_text == said
