"""The study's own schedules, done again: right on what they cover, padded as they say, honest about the
rest."""

from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import CallSpec
from longca.cp.baselines.paper_style import PaddedDocuments
from longca.cp.comm.backend import Comm
from longca.kernels.backends.naive import NaivePrepared
from longca.masks.build import build_mask
from longca.masks.traits import Traits
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.ranks import on_ranks

STRATEGIES = ("paper_style_allgather", "paper_style_ring")
MASKS = ("full", "causal", "full_document", "causal_document")
WORLDS = (1, 2, 3, 4)
HEADS = ((4, 4), (4, 1), (6, 2))
CALL = CallSpec(4, 2, 64, "bf16", "bwd")


CASES = [
    Case(mask, length, *HEADS[(i + j) % 3], (torch.float32, torch.bfloat16)[(i + j) % 2], strategy, seed=i)
    for strategy in STRATEGIES
    for i, mask in enumerate(MASKS)
    for j, length in enumerate((60, 97, 130))
]
"""lengths that divide and lengths that do not; sampled documents, most of them shorter than 2P"""
SHORT = [Case(mask, 3, 4, 2, strategy=strategy) for strategy in STRATEGIES for mask in ("full", "causal")]
BYTES = [Case("causal", length, 4, 2, strategy=strategy) for strategy in STRATEGIES for length in (64, 65)]


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    return [case.run(comm) for case in cases]


@cache
def results(world: int) -> dict[Case, list[dict]]:
    """Parts of all ranks, of each case."""
    cases = CASES + SHORT + BYTES
    return dict(zip(cases, map(list, zip(*on_ranks(run_all, world, cases), strict=True)), strict=True))


@pytest.mark.parametrize(
    "world", [4, *(pytest.param(world, marks=pytest.mark.slow) for world in WORLDS if world != 4)]
)
@pytest.mark.parametrize("case", CASES + SHORT, ids=str)
def test_results_are_those_of_one_device(case: Case, world: int):
    parts = results(world)[case]
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


def test_each_token_is_held_once_and_padding_evens_out():
    documents = PaddedDocuments(np.array([0, 5, 6, 30, 54, 101]), 3)
    held = [documents.held(rank) for rank in range(3)]
    assert sorted(np.concatenate([part.positions for part in held])) == list(range(101))
    assert documents.num_rows == 2 * (1 + 1 + 4 + 4 + 8)
    assert documents.num_padding == 3 * documents.num_rows - 101
    for rank, part in enumerate(held):
        assert (np.diff(part.rows) > 0).all()
        assert part.rows[-1] < documents.num_rows
        halves = [documents.held(rank, (number,)) for number in (0, 1)]
        assert sorted(np.concatenate([half.rows for half in halves])) == list(part.rows)
    lengths = np.diff(documents.bounds)
    rank, row = documents.rows_of(np.arange(5), lengths)
    for token, (owner, index) in enumerate(zip(rank, row, strict=True)):
        assert held[owner].rows[np.searchsorted(held[owner].positions, token)] == index


@pytest.mark.parametrize(
    ("strategy", "fwd", "bwd"), [("paper_style_allgather", 1, 2), ("paper_style_ring", 1, 1 + 4 / 3)]
)
def test_bytes_moved_are_those_of_the_formula_and_of_the_padding(strategy: str, fwd: float, bwd: float):
    keys = (
        2 * 3 * 16 * 2 * 8 * 4
    )  # k and v of the three other ranks: 16 tokens each, 2 heads, 8 elements, 4 bytes
    even, ragged = (results(4)[case] for case in BYTES if case.strategy == strategy)
    for part in even:
        assert part["moved"] == {"fwd": fwd * keys, "bwd": pytest.approx(bwd * keys)}
        assert part["costs"]["formula_bytes"] == pytest.approx(bwd * keys)
        assert not any("padded" in note for note in part["notes"])
    for part in ragged:
        assert part["moved"]["fwd"] == fwd * keys * 72 / 64
        assert any("padded to multiples of 8 tokens: 7 rows more" in note for note in part["notes"])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mask", STATIC_MASKS)
def test_only_the_studys_own_masks_are_done(strategy: str, mask: str):
    asked = build_mask(mask, seqlen=128, **STATIC_MASKS[mask])
    naive = Registry("kernel").load("naive")
    refusal = Registry("strategy").load(strategy).refusal(asked, CALL, 2, naive, "cpu")
    assert (refusal is None) == (mask in MASKS), refusal


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_kernel_is_asked_about_the_calls_that_are_made(strategy: str, mask: str):
    plugin = Registry("strategy").load(strategy)
    naive = Registry("kernel").load("naive")
    problem = Case(mask, 128, 4, 2, strategy=strategy).problem()
    made: set[Traits] = set()
    with patch.object(naive, "prepare", lambda local: made.add(local.mask.traits) or NaivePrepared(local)):
        for rank in range(2):
            plugin.prepare(problem, naive, SimpleNamespace(rank=rank, world=2))
    asked = plugin.local_calls(problem.mask.traits, CALL, 2)
    assert {shape(traits) for _, traits in asked} <= {shape(traits) for traits in made}
    assert {traits.full for _, traits in asked} == {traits.full for traits in made}


def shape(traits: Traits) -> tuple:
    """The shape by which kernels are chosen; only the longer half of the all-gather is asked about."""
    return traits.seqlen_q, traits.seqlen_k, traits.full, traits.causal, traits.num_segments, traits.window


def test_a_kernel_without_lse_is_refused():
    sdpa = Registry("kernel").load("sdpa")
    mask = build_mask("full", seqlen=128)
    assert "LSE" in Registry("strategy").load("paper_style_ring").refusal(mask, CALL, 2, sdpa, "cpu")
