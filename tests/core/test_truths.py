"""True and false are no numbers, wherever a user writes one."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from longca.core.errors import UserError
from longca.core.schema import Frozen, parse
from longca.lab.studies.study import Study
from longca.masks import build_mask


class Inner(Frozen):
    size: Annotated[int, Field(ge=0)] | None = 3
    is_on: bool = True
    any_value: bool | int = 2


class Outer(Frozen):
    numbers: tuple[float, ...] = ()
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    names: dict[str, bool | int] = {}
    rates: dict[str, float] = {}
    models: dict[str, Inner] = {}
    rows: tuple[tuple[int, int], ...] = ()


WRONG = "a number is wanted, not true or false"


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({"inner": {"size": True}}, ["'inner.size' = True: "]),
        ({"numbers": [1, False]}, ["'numbers.1' = False: "]),
        ({"several": [{}, {"size": False}]}, ["'several.1.size' = False: "]),
        ({"rates": {"bf16": True}}, ["'rates.bf16' = True: "]),
        ({"models": {"a": {"size": True}}}, ["'models.a.size' = True: "]),
        ({"rows": [[1, 2], [True, 3]]}, ["'rows.1.0' = True: "]),
        ({"inner": {"size": True}, "numbers": [True]}, ["'numbers.0' = True: ", "'inner.size' = True: "]),
    ],
)
def test_a_number_is_not_true(data: dict[str, Any], problems: list[str]):
    with pytest.raises(UserError) as raised:
        parse(Outer, data, "here")
    assert [str(raised.value).count(problem + WRONG) for problem in problems] == [1] * len(problems)
    assert str(raised.value).count(WRONG) == len(problems)


def test_other_problems_are_told_as_well_and_each_mistake_once():
    with pytest.raises(UserError) as raised:
        parse(Outer, {"numbers": [True], "inner": {"size": -1, "sise": 2}}, "here")
    assert (
        WRONG in str(raised.value) and "inner.size" in str(raised.value) and "inner.sise" in str(raised.value)
    )
    with pytest.raises(UserError) as raised:
        parse(Study, {"name": "a", "grids": [{"kernel": "naive", "mask": "full", "seqlen": True}]}, "here")
    assert str(raised.value).count("seqlen") == 1


def test_a_problem_of_a_neighbour_hides_none():
    class Neighbours(Frozen):
        size: int = 1
        size_k: Annotated[int, Field(ge=0)] = 1

    with pytest.raises(UserError) as raised:
        parse(Neighbours, {"size": True, "size_k": -1}, "here")
    assert f"'size' = True: {WRONG}" in str(raised.value) and "'size_k' = -1" in str(raised.value)


def test_of_many_the_first_are_told():
    with pytest.raises(UserError, match=r"has 1,000 problems:(.|\n)*and \d+ more") as raised:
        parse(Outer, {"numbers": [True] * 1000}, "here")
    assert len(str(raised.value)) < 5000


def test_true_stays_where_it_may_be():
    data = {"inner": {"is_on": False, "any_value": True}, "names": {"a": True, "b": 1}}
    parsed = parse(Outer, data, "here")
    assert parsed.inner.any_value is True and parsed.names == {"a": True, "b": 1}
    assert parse(Outer, {"inner": {"size": "5"}, "numbers": ["0.5"]}, "here").numbers == (0.5,)


def test_parameters_of_a_mask_and_settings_of_a_study():
    with pytest.raises(UserError, match="Mask 'sliding_window': 'window' = True: " + WRONG):
        build_mask("sliding_window", seqlen=64, window=True)
    grid = {"kernel": "naive", "mask": "full", "seqlen": 64, "heads": "2:1"}
    with pytest.raises(UserError, match=r"'measure\.repeats' = True: " + WRONG):
        parse(Study, {"name": "a", "grids": [grid], "measure": {"repeats": True}}, "here")
