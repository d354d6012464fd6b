"""Ways that are asked for in the words of an answer: a strategy with its parameters and its kernel."""

from typing import Any

import pytest

from longca.core.errors import UserError
from longca.lab.advice.ranking import advise
from longca.lab.advice.ways import Way, asked_ways

USUAL = ("band", "fa3")


def test_a_strategy_may_name_its_kernel():
    asked = asked_ways(["usp[heads=2]+band", "ring_p2p", "loongtrain+fa4"], None, USUAL)
    assert asked.strategies == ("usp", "ring_p2p", "loongtrain") and asked.kernels == ("band", "fa3", "fa4")
    assert asked.ways == (
        Way("usp", (("heads", 2),), "band"),
        Way("ring_p2p", None, "band"),
        Way("ring_p2p", None, "fa3"),
        Way("loongtrain", None, "fa4"),
    )
    assert asked_ways(["usp+band"], ["band", "fa3"], USUAL).ways == (Way("usp", None, "band"),)
    assert not asked_ways(["usp"], None, USUAL).ways, "names alone ask for all kernels, as ever"


@pytest.mark.parametrize(
    ("strategies", "kernels", "said"),
    [
        (["usp+band"], ["fa3"], "Strategy 'usp+band' names kernel 'band', and kernel 'fa3' is given"),
        (["usq+band"], None, "Unknown strategy 'usq': did you mean 'usp'"),
        (["usp[head=2]+band"], None, "did you mean"),
        ([3], None, "Unknown strategy 3"),
    ],
)
def test_ways_that_cannot_be_are_refused_in_one_line(strategies: Any, kernels: Any, said: str):
    with pytest.raises(UserError) as error:
        asked_ways(strategies, kernels, USUAL)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_advice_has_the_ways_that_were_asked_for():
    ways = ["usp[heads=2]+band", "ring_allgather+fa4"]
    advice = advise("causal", seqlen="64K", gpus=4, direction="fwd", strategies=ways)
    assert {option.candidate.title for option in advice.options} == set(ways)
    with pytest.raises(UserError, match="Nothing is known of the time of kernel 'flx'"):
        advise("causal", gpus=2, strategies=["usp+flx"])
    with pytest.raises(UserError, match="No strategy and kernel can run this call"):
        advise("causal", gpus=4, strategies=["usp[heads=3]+band"])
