"""Every strategy against the reference, over gloo, on 1 to 4 ranks.

The usual run takes every strategy with every mask on every number of ranks, each with one of the head counts,
lengths, dtypes and seeds, rotating so that all pairs of values meet; `-m slow` takes the whole product.
"""

from functools import cache
from itertools import product

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.ranks import on_ranks

STRATEGIES = [strategy.name for strategy in Registry("strategy").load_all() if not strategy.baseline]
WORLDS = (1, 2, 3, 4)
HEADS = ((4, 4), (3, 3), (2, 2), (4, 1), (8, 2), (12, 3))
LENGTHS = (97, 64, 130)
DTYPES = (torch.float32, torch.bfloat16)
SEEDS = (0, 1)
BLOCKS = (("block", 16), ("density", 0.4))


def sample(world: int) -> list[Case]:
    numbered = product(enumerate(STRATEGIES), enumerate(STATIC_MASKS))
    return [
        Case(
            mask,
            LENGTHS[(i + i // 3 + j + world) % 3],
            *HEADS[(i + j + world) % 6],
            DTYPES[(i // 2 + j + world) % 2],
            strategy,
            SEEDS[(i // 4 + j + world // 2) % 2],
        )
        for (j, strategy), (i, mask) in numbered
    ]


def everything() -> list[Case]:
    axes = product(STRATEGIES, STATIC_MASKS, LENGTHS, HEADS, DTYPES, SEEDS)
    return [
        Case(mask, length, *heads, dtype, strategy, seed)
        for strategy, mask, length, heads, dtype, seed in axes
    ]


def special() -> list[Case]:
    """Fewer tokens than ranks; a mask for each KV head, which those that divide 4 heads among 3 ranks
    refuse."""
    short = [Case("causal", length, 4, 2, strategy=strategy) for strategy in STRATEGIES for length in (1, 3)]
    blocks = [
        Case("block_sparse_uniform", 128, 8, 4, strategy=strategy, params=BLOCKS) for strategy in STRATEGIES
    ]
    return short + blocks


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    return [case.run(comm) for case in cases]


def cases_of(world: int, step: int) -> list[Case]:
    return (sample(world) + special())[::step]


@cache
def results(world: int, step: int) -> dict[Case, list[dict]]:
    """Parts of all ranks, of each case."""
    cases = cases_of(world, step)
    return dict(zip(cases, zip(*on_ranks(run_all, world, cases), strict=True), strict=True))


def check(case: Case, parts: list[dict]) -> None:
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


@pytest.mark.parametrize("case", cases_of(4, 6), ids=str)
def test_results_are_those_of_one_device(case: Case):
    """Every sixth case on as many ranks as make each strategy itself."""
    check(case, results(4, 6)[case])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "case"), [(world, case) for world in WORLDS for case in cases_of(world, 1)], ids=str
)
def test_all_results_are_those_of_one_device(world: int, case: Case):
    check(case, results(world, 1)[case])


def test_the_sample_holds_all_pairs_of_values():
    def pairs(cases: list[tuple[int, Case]]) -> set[tuple]:
        axes = [
            (
                world,
                case.strategy,
                case.mask,
                case.seqlen,
                (case.num_q_heads, case.num_kv_heads),
                case.dtype,
                case.seed,
            )
            for world, case in cases
        ]
        return {(i, values[i], j, values[j]) for values in axes for i in range(7) for j in range(i)}

    assert pairs([(world, case) for world in WORLDS for case in sample(world)]) == pairs(
        list(product(WORLDS, everything()))
    )


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_whole_product(world: int):
    cases = everything()
    for case, parts in zip(cases, zip(*on_ranks(run_all, world, cases), strict=True), strict=True):
        check(case, parts)
