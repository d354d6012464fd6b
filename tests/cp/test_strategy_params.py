"""Meshes that a cell asks for: they are the meshes that run, results are right on each, and what cannot be is
refused with a reason."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from longca.core.errors import UserError
from longca.core.plugin import Registry
from longca.cp.partition.mesh import Mesh, formula_bytes
from longca.cp.schedule.ring_and_gather import Ring
from longca.lab.bench.plan.predict import Predictor
from longca.lab.studies.masks import cell_mask
from longca.lab.studies.strategies import strategy_of
from tests.cp.test_planned import cell
from tests.helpers.cp.case import Case
from tests.helpers.cp.virtual import on_virtual_ranks

HEADS = 16, 8


def meshes(world: int) -> Iterator[tuple[str, dict[str, int]]]:
    """(strategy, parameters) of every mesh of so many ranks."""
    for heads in (size for size in range(1, world + 1) if world % size == 0):
        yield "usp", {"heads": heads}
        yield from (
            ("loongtrain", {"heads": heads, "windows": windows})
            for windows in range(1, world // heads + 1)
            if world // heads % windows == 0
        )


@pytest.mark.parametrize("mask", ["full", "causal_document"])
@pytest.mark.parametrize(
    ("world", "strategy", "params"), [(world, *mesh) for world in (4, 8) for mesh in meshes(world)]
)
@pytest.mark.sample(3)
def test_results_are_right_and_bytes_those_of_the_formula(
    world: int, strategy: str, params: dict[str, int], mask: str
):
    case = Case(mask, 64, *HEADS, strategy=strategy, strategy_params=tuple(params.items()))
    parts = on_virtual_ranks(case.run, world)
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, (case, errors)
    mesh = Mesh(world // params["heads"], params["heads"])
    forward, backward = (
        formula_bytes(replace(case.problem(), needs_backward=needs), mesh) for needs in (False, True)
    )
    for part in parts:
        assert part["costs"]["formula_bytes"] == backward
        if mask == "full":
            assert part["moved"] == {"fwd": forward, "bwd": backward}
        notes = ", ".join(part["notes"])
        assert mesh.heads == 1 or f"heads among {mesh.heads}" in notes
        assert mesh.ring == 1 or f"of {mesh.ring}" in notes
        window = mesh.ring // params.get("windows", 1)
        assert (f"a double ring by windows of {window} of" in notes) == (1 < window < mesh.ring)


@pytest.mark.parametrize(
    ("world", "ring", "window"),
    [(8, 1, None), (16, 2, None), (24, 3, None), (32, 4, 2), (64, 8, 4), (96, 12, 4)],
)
def test_the_study_s_own_meshes(world: int, ring: int, window: int | None):
    """Head groups of 8, and for LoongTrain as many windows of their ring as the largest divisor no larger
    than its quotient."""
    windows = max(number for number in range(1, ring + 1) if ring % number == 0 and number <= ring // number)
    for name, params in (("usp", {"heads": min(world, 8)}), ("loongtrain", {"heads": 8, "windows": windows})):
        asked = cell(
            name, "full", world=world, heads=(64, 8), strategy_params=params, kernel="band", seqlen=64 * world
        )
        strategy: Any = strategy_of(asked)
        assert (
            strategy.refusal(
                cell_mask(asked), asked.call_spec, world, Registry("kernel").load("band"), "cuda"
            )
            is None
        )
        assert strategy.mesh(world, 8) == Mesh(ring, 8)
        if name == "loongtrain":
            assert strategy.schedules(strategy.mesh(world, 8)) == (Ring(window=window),)


def test_without_parameters_strategies_choose_as_they_do_by_themselves():
    for name in ("usp", "loongtrain"):
        plain: Any = Registry("strategy").load(name)
        configured: Any = strategy_of(cell(name))
        other: Any = plain.with_params({"heads": 1})
        for world in (1, 2, 4, 6, 8, 96):
            mesh = plain.mesh(world, 8)
            assert configured.mesh(world, 8) == mesh and configured.schedules(mesh) == plain.schedules(mesh)
            assert other.mesh(world, 8) == Mesh(world)
    single: Any = strategy_of(cell("loongtrain", strategy_params={"windows": 1}))
    assert single.schedules(Mesh(4)) == (Ring(),)


@pytest.mark.parametrize(
    ("strategy", "params", "words"),
    [
        ("usp", {"heads": 3}, "8 ranks are no whole number of head groups of 3"),
        ("usp", {"heads": 8}, "4 KV heads cannot be divided evenly among 8 ranks"),
        ("loongtrain", {"heads": 16}, "8 ranks are no whole number of head groups of 16"),
        ("loongtrain", {"heads": 2, "windows": 3}, "a ring of 4 cannot be divided evenly into 3 windows"),
        ("loongtrain", {"windows": 8}, "a ring of 4 cannot be divided evenly into 8 windows"),
    ],
)
def test_meshes_that_ranks_or_heads_do_not_allow_are_unsupported(
    strategy: str, params: dict[str, int], words: str
):
    for mask in ("causal", "block_sparse_uniform"):
        asked = cell(
            strategy, mask, world=8, strategy_params=params, params={"block": 16} if mask != "causal" else {}
        )
        assert words in str(Predictor("cpu").predict(asked).unsupported)
    case = Case("causal", 64, 8, 4, strategy=strategy, strategy_params=tuple(params.items()))
    with pytest.raises(ValueError, match=words):
        on_virtual_ranks(case.run, 8)


@pytest.mark.parametrize(
    ("strategy", "params", "words"),
    [
        ("usp", {"heads": 0}, "Strategy 'usp': 'heads' = 0: Input should be greater than or equal to 1"),
        ("usp", {"windows": 2}, "Strategy 'usp': unknown key 'windows', known keys: heads"),
        ("loongtrain", {"window": 2}, "Strategy 'loongtrain': unknown key 'window', did you mean 'windows'?"),
        ("ulysses", {"heads": 2}, "Strategy 'ulysses': unknown key 'heads', known keys: none"),
    ],
)
def test_parameters_that_a_strategy_cannot_have(strategy: str, params: dict[str, int], words: str):
    plugin = Registry("strategy").load(strategy)
    for use in (plugin.resolve, plugin.with_params):
        with pytest.raises(UserError, match=words):
            use(params)


def test_a_prediction_for_one_cell_leaves_its_strategy_as_it_was():
    """Plug-ins are loaded once for many cells."""
    predictor = Predictor("cpu")
    refused, plain = (cell("usp", world=8, strategy_params=params) for params in ({"heads": 3}, {}))
    assert [predictor.predict(entry).unsupported is None for entry in (refused, plain, refused)] == [
        False,
        True,
        False,
    ]
