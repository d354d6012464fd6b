"""Every strategy over NCCL on two GPUs, and on four where they are: this project's with its own kernel,
others' with those they bring."""

import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import CallSpec
from longca.cp.comm.backend import Comm
from tests.helpers.cp.case import Case
from tests.helpers.cp.ranks import on_ranks

FOUND = torch.cuda.device_count()
WORLDS = [number for number in (2, 3, 4) if number <= FOUND] or [2]
MASKS = ("full", "causal", "causal_document", "full_document", "shared_question", "sliding_window")
COMPILED = ("causal_document", "shared_question")  # FlexAttention is compiled anew for each mask
STRATEGIES = {name: Registry("strategy").load(name) for name in Registry("strategy").names()}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(FOUND < 2, reason="fewer than two GPUs here"),
]

Run = tuple[Case, str]  # with the name of a kernel


def own_runs() -> list[Run]:
    own = [name for name, strategy in STRATEGIES.items() if not strategy.baseline]
    cases = [
        Case(mask, 1021, 8, 2, torch.bfloat16, strategy, head_dim=128) for strategy in own for mask in MASKS
    ]
    cases += [
        Case("causal_document", 4093, *heads, torch.bfloat16, strategy, weights=weights, head_dim=128)
        for strategy in ("ulysses", "usp")
        for heads in ((8, 8), (32, 8), (16, 1))
        for weights in ((1, 1), (1, 2, 1), (1, 1, 1, 1))
    ]
    return [(case, "band") for case in cases]


def peers_runs(world: int, device_type: str = "cuda") -> list[Run]:
    """The runs that others' strategies support, and that are possible here."""
    runs = []
    for name, strategy in STRATEGIES.items():
        for kernel in (strategy.kernels or ("band",)) if strategy.baseline else ():
            local = Registry("kernel").load(kernel)
            if strategy.available(device_type) or local.available(device_type):
                continue
            for mask in COMPILED if kernel == "flex" else MASKS:
                case = Case(mask, 512 * world, 16, 4, torch.bfloat16, name, head_dim=128)
                call = CallSpec(16, 4, 128, "bf16", "bwd")
                if strategy.refusal(case.problem().mask, call, world, local, device_type) is None:
                    runs.append((case, kernel))
    return runs


def run_all(comm: Comm, runs: list[Run]) -> list[dict]:
    return [case.run(comm, kernel) for case, kernel in runs]


def check(world: int, runs: list[Run], device_type: str = "cuda") -> None:
    of_ranks = on_ranks(run_all, world, runs, timeout_s=300.0, device_type=device_type)
    for (case, kernel), parts in zip(runs, zip(*of_ranks, strict=True), strict=True):
        errors = case.errors(list(parts), device_type)
        assert max(errors.values()) < case.tolerance, (case, kernel, errors)


@pytest.mark.parametrize("world", WORLDS)
def test_results_are_those_of_one_device(world: int):
    check(world, own_runs())


@pytest.mark.parametrize("world", WORLDS)
def test_so_are_those_of_peers(world: int):
    check(world, peers_runs(world))
