"""Messages by copy engines against NCCL's, on two GPUs and on four where they are: the same bits, however
ranks are delayed."""

import os
import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from longca.core.plugin import Registry
from longca.cp.comm.backend import Comm
from longca.cp.comm.p2p import ReceiveBuffers
from longca.kernels.contract import Problem
from longca.lab.bench.workers.group import GRACE_SECONDS
from longca.lab.bench.workers.pool import Pool
from tests.helpers.bench.misbehaving import MEASURE, cp_cell
from tests.helpers.cp.case import TENSORS, Case
from tests.helpers.cp.ranks import on_ranks

FOUND = torch.cuda.device_count()
WORLDS = [number for number in (2, 3, 4) if number <= FOUND] or [2]
STRATEGIES = ("ring_p2p", "ring_allgather", "ulysses", "usp", "loongtrain")
MASKS = ("full", "causal_document", "sliding_window", "shared_question")
IN_USE = "messages by copy engines, into symmetric memory"
START_S = 60.0  # of two processes that have to load CUDA and NCCL
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(FOUND < 2, reason="fewer than two GPUs here"),
]


def send_to_all(comm: Comm, buffers: ReceiveBuffers, size: int, number: int) -> torch.Tensor:
    """A message from each rank to all others → how many of their elements are wrong, without a host that
    waits."""
    others = [rank for rank in range(comm.world) if rank != comm.rank]
    mine = torch.full((size,), 1000 * number + comm.rank, dtype=torch.int32, device=comm.device)
    landed = buffers.empty(f"{size}", (comm.world, size), mine)
    sends = [(peer, mine, buffers.offset(f"{size}", comm.rank * size)) for peer in others]
    comm.stream("all").post(sends, [(peer, landed[peer]) for peer in others]).wait()
    expected = torch.arange(comm.world, dtype=torch.int32, device=comm.device)[:, None] + 1000 * number
    return (landed != expected)[others].sum()


def send_round(comm: Comm, sizes: list[int], rounds: int) -> dict[str, Any]:
    comm.use("symmetric")
    note = comm.messages_note
    buffers = comm.receive_buffers()
    comm.stream("all")
    for size in sizes:
        buffers.reserve(f"{size}", size * comm.world * 4)
    buffers.allocate()
    held_bytes = comm.unseen_bytes
    wrong = sum(
        int(x)
        for x in [send_to_all(comm, buffers, size, number) for number in range(rounds) for size in sizes]
    )
    del buffers
    comm.use("nccl")
    return {
        "note": note,
        "wrong": wrong,
        "held": held_bytes,
        "left": comm.unseen_bytes,
        "moved": comm.moved_bytes,
    }


@pytest.mark.parametrize("world", WORLDS)
def test_messages_of_all_sizes_arrive_and_their_memory_is_given_back(world: int) -> None:
    sizes = [1, 1000, 1 << 20, 1 << 24]
    rounds = 5
    for part in on_ranks(send_round, world, sizes, rounds, device_type="cuda"):
        assert part["note"] == IN_USE and part["wrong"] == 0
        assert part["moved"] == rounds * sum(sizes) * 4 * (world - 1)
        assert part["held"] >= sum(sizes) * 4 * world
        assert part["left"] < 1 << 20, "only the signals of comm streams stay"


def after_a_pair(comm: Comm, sizes: list[int]) -> dict[str, Any]:
    """As `send_round`, of ranks of which two have shared memory with each other before, and the rest none."""
    both = dist.new_group([0, 1])
    if comm.rank < 2:
        pair = Comm.over(both, comm.device, comm.timeout_s)
        assert send_round(pair, sizes, 2)["note"] == IN_USE
        pair.close()
    return send_round(comm, sizes, 2)


@pytest.mark.skipif(FOUND < 3, reason="fewer than three GPUs here")
def test_ranks_share_memory_that_have_shared_unequally_often() -> None:
    for part in on_ranks(after_a_pair, min(FOUND, 4), [1, 1000], timeout_s=120.0, device_type="cuda"):
        assert part["note"] == IN_USE and part["wrong"] == 0


def run_both(comm: Comm, cases: list[Case]) -> list[dict[str, Any]]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else its sums may depend on what else runs
    outcomes = []
    for case in cases:
        comm.use("nccl")
        there = case.run(comm)
        comm.use("symmetric")
        here = case.run(comm)
        outcomes.append(
            {
                "notes": here["notes"],
                "repeatable": there["repeatable"] and here["repeatable"],
                "moved": (there["moved"], here["moved"]),
                "same": {name: torch.equal(there[name], here[name]) for name in TENSORS},
            }
        )
    return outcomes


@pytest.mark.parametrize("world", WORLDS)
def test_results_are_those_of_nccl_to_the_last_bit(world: int) -> None:
    cases = [
        Case(mask, 1021, 16, 8, torch.bfloat16, strategy, head_dim=64)
        for strategy in STRATEGIES
        for mask in MASKS
    ]
    cases += [
        Case("causal", 4093, 16, 8, torch.bfloat16, strategy, head_dim=64, weights=(1, 2, 1))
        for strategy in ("ulysses", "usp")
    ]
    for case, parts in zip(
        cases,
        zip(*on_ranks(run_both, world, cases, timeout_s=300.0, device_type="cuda"), strict=True),
        strict=True,
    ):
        for part in parts:
            assert IN_USE in part["notes"] and part["repeatable"], case
            assert all(part["same"].values()) and len({str(moved) for moved in part["moved"]}) == 1, (
                case,
                part,
            )


def run_late(comm: Comm, strategy: str, iterations: int) -> dict[str, Any]:
    """Calls with four inputs in turn, ranks held up at random on the host and on the GPU; nobody waits for
    the GPU until the end."""
    case = Case("causal", 4096, 16, 8, torch.bfloat16, strategy, head_dim=64)
    chance = random.Random(comm.rank)
    problem = case.problem()
    problem = Problem(problem.mask, 16, 8, 64, torch.bfloat16, comm.device, needs_backward=True)
    kernel = Registry("kernel").load("band")
    calls = {}
    expected = []
    for messages in ("nccl", "symmetric"):
        comm.use(messages)
        calls[messages] = Registry("strategy").load(strategy).prepare(problem, kernel, comm)
    mine = torch.from_numpy(calls["nccl"].shard.positions_L)
    inputs = [[(x * scale)[mine].to(comm.device) for x in case.inputs()] for scale in (1.0, 0.5, -1.0, 0.25)]
    for tensors in inputs:
        forward = calls["nccl"].forward(*tensors[:3])
        expected.append([forward.out, *calls["nccl"].backward(forward, tensors[3])])
    wrong = torch.zeros((), dtype=torch.int64, device=comm.device)
    for number in range(iterations):
        turn = number % len(inputs)
        if chance.random() < 0.3:
            time.sleep(chance.random() * 3e-3)
        if chance.random() < 0.5:
            torch.cuda._sleep(int(chance.random() * 3e6))
        forward = calls["symmetric"].forward(*inputs[turn][:3])
        if chance.random() < 0.5:
            torch.cuda._sleep(int(chance.random() * 3e6))
        facts = [forward.out, *calls["symmetric"].backward(forward, inputs[turn][3])]
        for x, y in zip(facts, expected[turn], strict=True):
            wrong += (x != y).sum()
    return {"note": comm.messages_note, "wrong": int(wrong)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_hundred_calls_with_random_delays(strategy: str) -> None:
    parts = on_ranks(run_late, WORLDS[-1], strategy, 200, timeout_s=300.0, device_type="cuda")
    assert [part["note"] for part in parts] == [IN_USE] * len(parts)
    assert [part["wrong"] for part in parts] == [0] * len(parts)


@pytest.mark.parametrize(
    ("kernel", "status", "words"),
    [
        ("midway_raises", "error", "no key"),
        ("midway_killed_while_timed", "error", "rank 1: it was killed by SIGKILL"),
        ("midway_sleeps", "timeout", "seconds=20.0"),
    ],
)
@pytest.mark.parametrize("strategy", ["ring_p2p", "ulysses"])
def test_a_peer_that_is_gone_ends_the_cell_and_the_next_one_runs(
    pool: Pool, strategy: str, kernel: str, status: str, words: str
) -> None:
    """A stream that waits for it would wait for ever: the runner kills what waits."""
    timeout_s = 20.0 if kernel == "midway_sleeps" else 600.0
    measure = MEASURE.model_copy(update={"timeout_s": timeout_s, "messages": "symmetric"})
    begun = time.monotonic()
    result = pool.measure(cp_cell(strategy, 2, kernel, dtype="bf16"), measure)
    assert time.monotonic() - begun < START_S + max(GRACE_SECONDS, min(timeout_s, 20.0))
    assert result.outcome.status == status and words in repr(result.outcome), result.outcome
    after = pool.measure(cp_cell(strategy, 2, dtype="bf16"), measure.model_copy(update={"timeout_s": 60.0}))
    assert after.outcome.status == "ok" and IN_USE in after.notes, (after.outcome, after.notes)


def test_receive_buffers_count_as_memory(pool: Pool) -> None:
    """Gathered keys lie in receive buffers: torch's allocator does not see them, the record must."""
    cell = cp_cell("ring_allgather", 2, dtype="bf16", seqlen=8192)
    by_nccl, symmetric = (
        pool.measure(cell, MEASURE.model_copy(update={"messages": messages}))
        for messages in ("nccl", "symmetric")
    )
    assert by_nccl.memory and symmetric.memory and IN_USE in symmetric.notes
    for there, here in zip(
        by_nccl.memory.above_shards_bytes, symmetric.memory.above_shards_bytes, strict=True
    ):
        assert here >= 0.9 * there > 0
