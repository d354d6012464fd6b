"""Every strategy against the reference, over gloo, on 1 to 4 ranks.

The usual run takes, for every pair of mask and head count, one of the lengths, dtypes and seeds, rotating so that all pairs of
values meet; `-m slow` takes the whole product.
"""

from functools import cache
from itertools import product

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.comm import Comm
from tests.cp.case import STATIC_MASKS, Case
from tests.cp.ranks import on_ranks

STRATEGIES = [strategy.name for strategy in Registry("strategy").load_all() if not strategy.baseline]
WORLDS = (1, 2, 3, 4)
HEADS = ((4, 4), (3, 3), (2, 2), (4, 1), (8, 2), (12, 3))
LENGTHS = (97, 64, 130)
DTYPES = (torch.float32, torch.bfloat16)
SEEDS = (0, 1)


def sample() -> list[Case]:
    return [Case(mask, LENGTHS[(i + j) % 3], *heads, DTYPES[(i + j // 2) % 2], strategy, SEEDS[(i + j // 3) % 2])
            for strategy in STRATEGIES for i, mask in enumerate(STATIC_MASKS) for j, heads in enumerate(HEADS)]


def everything() -> list[Case]:
    axes = product(STRATEGIES, STATIC_MASKS, LENGTHS, HEADS, DTYPES, SEEDS)
    return [Case(mask, length, *heads, dtype, strategy, seed) for strategy, mask, length, heads, dtype, seed in axes]


def short() -> list[Case]:
    """Fewer tokens than ranks."""
    return [Case(mask, length, 4, 2, strategy=strategy) for strategy in STRATEGIES for mask in ("full", "causal", "full_document")
            for length in (1, 3)]


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    return [case.run(comm) for case in cases]


@cache
def results(world: int) -> dict[Case, list[dict]]:
    """Parts of all ranks, of each case."""
    cases = sample() + short()
    return dict(zip(cases, zip(*on_ranks(run_all, world, cases), strict=True), strict=True))


def check(case: Case, parts: list[dict]) -> None:
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", sample() + short(), ids=str)
def test_results_are_those_of_one_device(case: Case, world: int):
    check(case, results(world)[case])


def test_the_sample_holds_all_pairs_of_values():
    def pairs(cases: list[Case]) -> set[tuple]:
        axes = [(case.mask, case.seqlen, (case.num_q_heads, case.num_kv_heads), case.dtype, case.seed) for case in cases]
        return {(i, values[i], j, values[j]) for values in axes for i in range(5) for j in range(i)}

    assert pairs(sample()) == pairs(everything())


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_whole_product(world: int):
    cases = everything()
    for case, parts in zip(cases, zip(*on_ranks(run_all, world, cases), strict=True), strict=True):
        check(case, parts)


@pytest.mark.parametrize("name", Registry("strategy").names())
def test_a_strategy_says_what_it_is(name: str):
    strategy = Registry("strategy").load(name)
    assert strategy.label
    assert strategy.summary
    assert strategy.url.startswith("https://")
