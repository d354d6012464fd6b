"""Every strategy over NCCL on two GPUs, and on four where they are, with this project's own kernel."""

import pytest
import torch

from longca.core.plugin import Registry
from longca.cp.comm import Comm
from tests.cp.case import Case
from tests.cp.ranks import on_ranks

FOUND = torch.cuda.device_count()
MASKS = ("full", "causal", "causal_document", "full_document", "shared_question", "sliding_window")
pytestmark = [pytest.mark.gpu, pytest.mark.multi_gpu, pytest.mark.skipif(FOUND < 2, reason="fewer than two GPUs here")]


def run_all(comm: Comm, cases: list[Case]) -> list[dict]:
    return [case.run(comm, "band") for case in cases]


@pytest.mark.parametrize("world", [number for number in (2, 3, 4) if number <= FOUND] or [2])
def test_results_are_those_of_one_device(world: int):
    cases = [Case(mask, 1021, 8, 2, torch.bfloat16, strategy, head_dim=64) for strategy in Registry("strategy").names() for mask in MASKS]
    cases += [Case("causal_document", 4093, *heads, torch.bfloat16, strategy, weights=weights, head_dim=64)
              for strategy in ("ulysses", "usp") for heads in ((8, 8), (32, 8), (16, 1)) for weights in ((1, 1), (1, 2, 1), (1, 1, 1, 1))]
    for case, parts in zip(cases, zip(*on_ranks(run_all, world, cases, timeout_s=300.0, device_type="cuda"), strict=True), strict=True):
        errors = case.errors(list(parts))
        assert max(errors.values()) < case.tolerance, (case, errors)
