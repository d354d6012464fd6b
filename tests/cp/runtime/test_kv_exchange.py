"""A gather whose keys are computed with in one call, after they have come: whatever the mask, by threads, by
gloo and into open memory."""

from typing import Any

import pytest
import torch

from longca.cp.comm.backend import Comm
from longca.cp.schedule.ring_and_gather import Gather
from longca.cp.strategies.ring_allgather import RingAllGather
from tests.helpers.cp.case import STATIC_MASKS, TENSORS, Case
from tests.helpers.cp.ranks import on_ranks
from tests.helpers.cp.virtual import on_virtual_ranks
from tests.helpers.cp.virtual_memory import on_symmetric_ranks

FIRST = "a gather first of"
BLOCKS = (("block", 16), ("density", 0.4))


def gather_first(*_: object) -> tuple[Gather, ...]:
    return (Gather(0),)


@pytest.fixture(autouse=True)
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingAllGather, "schedules", gather_first)


def case_of(mask: str, seqlen: int = 97, **how: Any) -> Case:
    return Case(mask, seqlen, 8, 2, strategy="ring_allgather", **how)


def check(case: Case, parts: list[dict[str, Any]]) -> None:
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, (case, errors)
    assert all(
        part["repeatable"] and part["notes"][0].startswith(FIRST) and part["costs"]["num_kernel_calls"] <= 1
        for part in parts
    )


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("mask", [*STATIC_MASKS, "block_sparse_uniform"])
@pytest.mark.sample(5)
def test_results_are_those_of_one_device(mask: str, world: int):
    case = case_of(mask, 128, params=BLOCKS) if mask == "block_sparse_uniform" else case_of(mask)
    for keeps_order in (False, True):
        check(case, on_virtual_ranks(case.run, world, keeps_order=keeps_order))


@pytest.mark.parametrize("mask", ["full", "causal_document", "sliding_window"])
def test_own_keys_lie_before_those_of_others_where_senders_must_know_places(mask: str):
    case = case_of(mask, dtype=torch.bfloat16)
    for there, here in zip(
        on_virtual_ranks(case.run, 4, keeps_order=True), on_symmetric_ranks(case.run, 4), strict=True
    ):
        assert here["moved"] == there["moved"]
        assert all(torch.equal(there[name], here[name]) for name in TENSORS)


def run_all(comm: Comm, cases: list[Case]) -> list[dict[str, Any]]:
    RingAllGather.schedules = gather_first  # type: ignore[method-assign]  # in a process of its own
    return [case.run(comm) for case in cases]


def test_so_they_are_over_gloo():
    cases = [case_of(mask, dtype=torch.bfloat16) for mask in ("causal", "full_document", "sliding_window")]
    for case, parts in zip(cases, zip(*on_ranks(run_all, 3, cases), strict=True), strict=True):
        check(case, list(parts))
