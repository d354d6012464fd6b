"""The contract of strategies: each says what it is."""

import pytest

from longca.core.plugin import Registry


@pytest.mark.parametrize("name", Registry("strategy").names())
def test_a_strategy_says_what_it_is(name: str):
    strategy = Registry("strategy").load(name)
    assert strategy.label
    assert strategy.summary
    assert strategy.url.startswith("https://")
