"""Backward with all keys in one call, over gloo, against one device; and sums of gradients of keys."""

from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.cp.comm.backend import Comm
from longca.cp.schedule.keys_at_once import has_runs
from longca.cp.schedule.memory import summed_keys
from longca.cp.schedule.plan import Transfer
from longca.cp.schedule.ring_and_gather import Gather
from tests.helpers.cp.case import STATIC_MASKS, Case
from tests.helpers.cp.ranks import on_ranks


def cases(strategy: str) -> list[Case]:
    return [
        Case(mask, 97 + index, *((4, 4), (4, 1), (6, 2))[index % 3], strategy=strategy, seed=index)
        for index, mask in enumerate(STATIC_MASKS)
    ]


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    """Each by a gather in one stage or a ring, with backward at once wherever it can be."""
    with (
        patch("longca.cp.strategies.ring_allgather.RingAllGather.schedules", lambda *_: (Gather(1),)),
        patch("longca.cp.planned.computes_at_once", lambda plan, call, kernel: has_runs(plan)),
    ):
        return [case.run(comm) for case in cases]


@pytest.mark.parametrize(
    ("world", "strategy"), [(2, "ring_p2p"), (2, "ring_allgather"), (4, "ring_allgather")]
)
def test_gradients_are_those_of_one_device(world: int, strategy: str) -> None:
    num_at_once = 0
    some = cases(strategy)
    for case, parts in zip(some, zip(*on_ranks(run_all, world, some), strict=True), strict=True):
        errors = case.errors(parts)
        assert max(errors.values()) < case.tolerance, (str(case), errors)
        assert all(part["repeatable"] for part in parts)
        num_at_once += all("backward with all keys in one call" in part["notes"] for part in parts)
    assert num_at_once > len(some) / 2, "the others have stripes"


def test_sums_have_the_rows_that_others_send() -> None:
    assert summed_keys([[], []]) == (slice(0, 0), 0)
    once = [[Transfer(1, 0, 4, 9)], [Transfer(2, 0, 9, 12)]]
    assert summed_keys(once) == (slice(4, 12), 1)
    twice = [[Transfer(1, 0, 4, 9), Transfer(3, 0, 20, 21)], [Transfer(2, 0, 8, 12)]]
    assert summed_keys(twice) == (slice(4, 21), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_several_parts_are_rounded_once(dtype: torch.dtype) -> None:
    """Of four ranks under `full` each key has three received parts."""
    case = Case("full", 128, 4, 2, dtype, "ring_p2p")
    errors = case.errors([results[0] for results in on_ranks(run_all, 4, [case])])
    assert max(errors.values()) < case.tolerance
    assert np.isfinite(list(errors.values())).all()
