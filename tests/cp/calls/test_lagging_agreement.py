"""Ranks that compare calls after their results were handed out, as on GPUs: all raise the same error soon."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.core.errors import UserError
from longca.cp.calls.agreement import Agreement
from longca.cp.comm.backend import Comm
from longca.cp.comm.headers import MAX_UNREAD, GatheredHeaders, SharedHeaders, file_bytes
from longca.cp.comm.process_group import WorldGroup
from longca.cp.context import PeerLost, context_parallel
from longca.masks import Mask, build_mask
from tests.cp.calls.test_agreement import check_random, random_programs
from tests.helpers.cp import programs
from tests.helpers.cp.programs import RIGHT, Call, Program, run, whole
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long

MEET = Call("meet")
FORWARD = Call("forward")
OTHER = Call("forward", mask=1)
TRAIN = Call("train")
LAST = Call("backward")
FIRST = Call("backward_first")
WARM = (TRAIN, Call("train", mask=1), Call("train", batch=2), MEET)
AFTER = (MEET, Call("forward", seed=9), MEET, FORWARD, FORWARD)
TAGGED = (Call("forward", seed=3, tag=3), MEET, Call("forward", seed=4, tag=4))

SCENARIOS: dict[str, tuple[Program, Program, str]] = {
    "another mask": (
        (FORWARD, *AFTER),
        (OTHER, *AFTER),
        "forward number 4 with different arguments: rank 0 has mask causal",
    ),
    "layers with tags swapped": (
        (*TAGGED, *AFTER),
        (*TAGGED[::-1], *AFTER),
        "rank 0 has tag 3, rank 1 has tag 4",
    ),
    "a step left out": (
        (FORWARD, OTHER, *AFTER),
        (OTHER, *AFTER),
        "forward number 4 with different arguments",
    ),
    "a batch beside a sequence": (
        (FORWARD, *AFTER),
        (Call("forward", batch=2), *AFTER),
        "rank 0 has one sequence without a batch, rank 1 has a batch of 2",
    ),
    "backward in another order": (
        (FORWARD, FORWARD, LAST, MEET, FIRST, FORWARD),
        (FORWARD, FORWARD, FIRST, MEET, LAST, FORWARD),
        "rank 0 has gradients of forward number 5, rank 1 has gradients of forward number 4",
    ),
    "backward left out": (
        (TRAIN, *AFTER),
        (FORWARD, *AFTER),
        "rank 0 calls backward number 5 with gradients of forward number 4",
    ),
    "another dtype to unshard": (
        (Call("unshard"), *AFTER),
        (Call("unshard", dtype=torch.float64), *AFTER),
        "rank 0 has torch.float32 of shape 4 × 8 a token, rank 1 has torch.float64",
    ),
    "an error of one rank": ((FORWARD, *AFTER), (Call("bad"), *AFTER), "Rank 1: Argument 'k' of attention"),
    "a call more at the end": ((FORWARD,), (), "closes the context after"),
}


@contextmanager
def lagging(masks: tuple[Mask, ...] = programs.MASKS) -> Iterator[Any]:
    """Ranks on CPUs compare calls of these masks as those on GPUs do. Yields the mock of `Comm.abandon`."""
    programs.expected.cache_clear()
    with (
        patch("longca.cp.context.Agreement", lambda comm, waits: Agreement(comm, waits=False)),
        patch("tests.helpers.cp.programs.MASKS", masks),
        patch.object(Comm, "abandon") as abandon,
    ):
        yield abandon
    programs.expected.cache_clear()


def no_messages(world: int) -> tuple[Mask, ...]:
    """Masks under which no rank needs tokens of another one: no host waits for messages, as on GPUs."""
    documents = np.full(world, programs.T // world)
    causal = build_mask("causal_document", seqlen=programs.T, documents=documents)
    return causal, build_mask("full_document", seqlen=programs.T, documents=documents), causal


def without_messages(comm: Comm, cases: list[list[Program]]) -> list[tuple[list[str], int]]:
    results = []
    for of_ranks in cases:
        with lagging(no_messages(comm.world)) as abandon:
            results.append((run(comm, "ring_p2p", "first", of_ranks), abandon.call_count))
    return results


def of_ranks(name: str, world: int) -> list[Program]:
    """By rank: rank 1 is the one that differs."""
    first, second, _ = SCENARIOS[name]
    return [[*WARM, *(second if rank == 1 else first)] for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_raises_the_same_at_its_next_call(world: int):
    cases = [of_ranks(name, world) for name in SCENARIOS]
    results = on_ranks(without_messages, world, cases, timeout_s=60.0)
    for name, case, outcomes in zip(SCENARIOS, cases, zip(*results, strict=True), strict=True):
        num_barriers = 2 if "left out" in name else 1  # ranks call the same at first
        errors = [
            first_error(program, calls, num_barriers)
            for program, (calls, _) in zip(case, outcomes, strict=True)
        ]
        check_errors(name, errors)
        assert len({num_abandoned for _, num_abandoned in outcomes}) == 1, (name, outcomes)


def first_error(program: Program, outcomes: list[str], num_barriers: int) -> str:
    """The first error of a rank. All was right before, and each later call is refused.

    Args:
        num_barriers: so many after the warm-up, and one call, all was right at most.
    """
    *calls, closed = outcomes
    number = next((number for number, call in enumerate(calls) if call != RIGHT), None)
    if number is None:
        return closed
    barriers = [place for place in range(len(WARM), len(program)) if program[place] == MEET]
    assert number >= len(WARM), outcomes
    assert not barriers or number <= barriers[num_barriers - 1] + 1, (number, outcomes)
    for call, outcome in zip(program[number + 1 :], calls[number + 1 :], strict=True):
        assert outcome == RIGHT if call == MEET else "cannot be used any more" in outcome, outcomes
    assert closed == RIGHT
    return calls[number]


def check_errors(name: str, errors: list[str]) -> None:
    words = SCENARIOS[name][2]
    assert len(set(errors)) == 1, (name, errors)
    assert errors[0].startswith("UserError"), (name, errors)
    assert words in errors[0].replace("each of ranks 0 and 2", "rank 0"), (name, errors)


@pytest.mark.parametrize(
    ("world", "count"), [(2, 6), *(pytest.param(world, 60, marks=pytest.mark.slow) for world in (2, 3))]
)
def test_one_call_that_differs_is_raised_everywhere_or_changes_nothing(world: int, count: int):
    cases = [random_programs(seed) + random_programs(seed)[:1] * (world - 2) for seed in range(count)]
    results = on_ranks(without_messages, world, cases, timeout_s=60.0)
    for seed, outcomes in enumerate(zip(*results, strict=True)):
        check_random(seed, [calls for calls, _ in outcomes])


def with_messages(comm: Comm, cases: list[list[Program]]) -> list[list[str]]:
    with lagging():
        return [run(comm, "ulysses", "first", of_ranks) for of_ranks in cases]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_no_host_hangs_where_messages_do_not_arrive(world: int):
    names = ["another mask", "layers with tags swapped", "a step left out", "an error of one rank"]
    cases = [
        [[call for call in program if call != MEET] for program in of_ranks(name, world)] for name in names
    ]
    results = on_ranks(with_messages, world, cases, timeout_s=60.0)
    for name, outcomes in zip(names, zip(*results, strict=True), strict=True):
        assert not any(call.startswith("late") for calls in outcomes for call in calls), (name, outcomes)
        check_errors(name, [next(call for call in calls if "Error" in call) for calls in outcomes])


def waiting_for_its_gpu(comm: Comm, case: str) -> list[str]:
    """Rank 0 waits for its GPU, and that for a message that does not arrive until messages are given up."""
    given_up = threading.Event()
    with lagging(no_messages(2)) as abandon:
        abandon.side_effect = given_up.set
        timeout_s = 3.0 if case == "late" else 60.0
        mask = no_messages(2)[0]
        cp = context_parallel(mask, None, "ring_p2p", num_q_heads=4, head_dim=8, timeout=timeout_s)
        q, k, v = (x[cp.positions] for x in whole(0)[:3])
        cp.attention(q, k, v)
        outcomes = []
        comm.barrier()
        start_s = time.monotonic()
        if comm.rank == 0:
            cp.attention(q, k, v)
            assert given_up.wait(20.0)
        else:
            time.sleep(1.0)
        if comm.rank and case == "error":
            outcomes.append(_error(lambda: cp.attention(q, k[:, :1], v)))
        if comm.rank and case == "gone":
            cp._agreement.close(is_failing=True)
            cp._agreement = Agreement.__new__(Agreement)
        comm.barrier()
        outcomes.append(f"{time.monotonic() - start_s:.0f}")
        if case != "gone" or comm.rank == 0:
            outcomes += [_error(lambda: cp.attention(q, k, v)), _error(lambda: cp.attention(q, k, v))]
            outcomes.append(_error(cp.close))
        return outcomes


def _error(call: Any) -> str:
    try:
        call()
    except (UserError, PeerLost) as error:
        return f"{type(error).__name__}: {error}"
    return RIGHT


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("error", "UserError: Rank 1: Argument 'k' of attention is"),
        ("late", "PeerLost: rank 1 has not come within"),
        ("gone", "UserError: Ranks call different things: rank 0 calls forward number 2"),
    ],
)
def test_a_host_that_waits_for_its_gpu_is_released(case: str, reason: str):
    outcomes, other = on_ranks(waiting_for_its_gpu, 2, case, timeout_s=60.0)
    seconds, first, second, closed = outcomes
    assert int(seconds) <= 10
    assert first.startswith(reason), outcomes
    assert second.startswith(("UserError: This context cannot be", "PeerLost: this context ended")), outcomes
    assert closed == RIGHT
    if case == "error":
        assert other[0] == first and "do not use results of forward number 2 and of later calls" in first
    if case == "late":  # it hears of it at its next call
        assert other[1].startswith("PeerLost: rank 0 cannot go on: rank 1 has not come within")


class Pair:
    """Two ranks of one process, without messages."""

    rank = 0
    world = 2
    timeout_s = 30.0
    can_release = True

    def __init__(self, folder: Path) -> None:
        path = folder / "headers"
        path.write_bytes(bytes(file_bytes(2)))
        headers = [SharedHeaders(FileIO(path, "r+"), rank, 2) for rank in range(2)]
        with patch("longca.cp.calls.agreement.open_headers", lambda comm: headers.pop(0)):
            self.ranks = [Agreement(self, waits=False) for _ in range(2)]  # type: ignore[arg-type]
        call = threading.Thread(target=self.call, args=(0,))
        call.start()
        self.call(1)
        call.join()

    def abandon(self) -> None: ...

    def call(self, rank: int, arguments: str = "mask") -> None:
        agreement = self.ranks[rank]
        agreement.begin("forward", arguments, series="mask")
        with agreement.messages():
            pass
        agreement.end()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(SharedHeaders, "_is_gone", lambda self, rank: False)  # locks are those of processes
    return Pair(tmp_path)


def test_a_host_runs_ahead_by_so_many_calls_and_no_more(pair: Pair):
    for _ in range(MAX_UNREAD):
        pair.call(0)
    ahead = threading.Thread(target=pair.call, args=(0,))
    ahead.start()
    ahead.join(0.5)
    assert ahead.is_alive()
    pair.call(1)
    ahead.join(20.0)
    assert not ahead.is_alive()
    for number in range(3 * MAX_UNREAD):  # slots are used again
        pair.call(number % 2 ^ 1)
    for _ in range(MAX_UNREAD):
        pair.call(1)
    for _ in range(MAX_UNREAD - 1):
        pair.call(0)
    pair.call(0, "tag 1")
    for _ in range(MAX_UNREAD - 1):
        pair.call(1)
    with pytest.raises(UserError, match="rank 0 has tag 1, rank 1 has tag 2"):
        pair.call(1, "tag 2")
    with pytest.raises(UserError, match="do not use results of forward number"):
        pair.call(0)


def test_a_rank_that_is_ahead_can_wait_for_the_comparison(pair: Pair):
    pair.call(0)
    waiting = threading.Thread(target=pair.ranks[0].settle)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    pair.call(1)
    waiting.join(20.0)
    assert not waiting.is_alive()


def test_messages_of_all_groups_are_given_up_at_once():
    """An abort returns when the whole GPU is idle, so none returns before all have begun."""
    group = WorldGroup.__new__(WorldGroup)
    all_begun = threading.Barrier(3)
    group.device, group._timeout, group._made = torch.device("cuda"), timedelta(seconds=30), ["a", "b", "c"]
    with (
        patch.object(WorldGroup, "_is_nccl", lambda self, group: True),
        patch("torch.distributed.distributed_c10d._abort_process_group", lambda group: all_begun.wait(20.0)),
    ):
        group.abandon()
    assert all_begun.n_waiting == 0 and not all_begun.broken
    assert group._made == []


def by_gloo(comm: Comm) -> list[str]:
    with (
        lagging(no_messages(comm.world)),
        patch.object(SharedHeaders, "attempt", lambda group: None),
        patch.object(GatheredHeaders, "poll", autospec=True, side_effect=GatheredHeaders.poll) as polls,
    ):
        outcomes = run(comm, "ring_p2p", "first", of_ranks("layers with tags swapped", comm.world))
        assert polls.called
        return outcomes


def test_headers_of_ranks_on_several_machines_lag_as_well():
    first, *others = (
        next(call for call in calls if call != RIGHT) for calls in on_ranks(by_gloo, 3, timeout_s=60.0)
    )
    assert "has tag 3" in first and others == [first] * 2
