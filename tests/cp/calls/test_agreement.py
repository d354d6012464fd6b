"""Ranks that call different things: every rank says so in one line, or all results are right."""

import random
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch

from longca.core.errors import UserError
from longca.cp.calls.agreement import Agreement
from longca.cp.comm.backend import Comm
from longca.cp.comm.headers import GatheredHeaders, SharedHeaders, open_headers
from longca.cp.comm.process_group import PeerLost
from longca.cp.context import context_parallel
from longca.cp.runtime.plan_attention import PreparedPlan
from longca.masks import Mask, build_mask
from tests.helpers.cp.programs import MASKS, RIGHT, Call, Program, run, run_all, whole
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long
STRATEGIES = ("ulysses", "ring_p2p", "usp", "ring_allgather", "loongtrain")
FORWARD = Call("forward")
OTHER = Call("forward", mask=1)
TRAIN = Call("train")
BACKWARD = Call("backward")
WARM = (FORWARD, OTHER)
TAGGED = (Call("train", seed=3, tag=3), Call("train", seed=4, tag=4))
SHARD = Call("shard", seed=1)
UNSHARD = Call("unshard")
PLAN = Call("with_mask", mask=2)
SCENARIOS: dict[
    str, tuple[Program, Program, str]
] = {  # calls of rank 0, those of rank 1, and words of the error
    "another mask at first": ((FORWARD, FORWARD), (OTHER, FORWARD), "rank 0 has mask causal of 48 tokens"),
    "another mask later": ((*WARM, FORWARD), (*WARM, OTHER), "rank 1 has mask sliding_window of 48 tokens"),
    "layers in another order": (
        (*WARM, FORWARD, OTHER),
        (*WARM, OTHER, FORWARD),
        "forward number 3 with different arguments",
    ),
    "layers of one mask in another order": (TAGGED, TAGGED[::-1], "rank 0 has tag 3, rank 1 has tag 4"),
    "a batch beside a sequence": (
        (FORWARD,),
        (Call("forward", batch=2),),
        "rank 0 has one sequence without a batch, rank 1 has a batch of 2",
    ),
    "another batch": (
        (Call("forward", batch=2),),
        (Call("forward", batch=1),),
        "rank 0 has a batch of 2, rank 1 has a batch of 1",
    ),
    "a step left out": (
        (FORWARD, OTHER, FORWARD),
        (FORWARD, FORWARD),
        "forward number 2 with different arguments",
    ),
    "an equal step left out": (
        (FORWARD, FORWARD),
        (FORWARD,),
        "rank 0 calls forward number 2 with mask causal",
    ),
    "backward beside forward": (
        (FORWARD, BACKWARD),
        (FORWARD, FORWARD),
        "rank 0 calls backward number 1 with gradients of forward number 1, rank 1 calls forward number 2",
    ),
    "no backward": ((TRAIN, TRAIN), (FORWARD, TRAIN), "rank 0 calls backward number 1"),
    "unshard of another dtype": (
        (UNSHARD,),
        (Call("unshard", dtype=torch.float64),),
        "rank 0 has torch.float32 of shape 4 × 8 a token, rank 1 has torch.float64",
    ),
    "unshard alone": ((UNSHARD, FORWARD), (FORWARD,), "rank 0 calls unshard number 1"),
    "with_mask alone": ((PLAN, FORWARD), (FORWARD,), "rank 0 calls with_mask number 1, rank 1 calls forward"),
    "with_mask of another mask": (
        (PLAN,),
        (Call("with_mask", mask=1),),
        "Argument 'mask' differs between ranks",
    ),
    "another content to shard": (
        (SHARD, FORWARD),
        (Call("shard", seed=2), FORWARD),
        "has other content on rank 1",
    ),
    "other tokens to shard": (
        (Call("shard", seed=1, dtype=torch.int64), FORWARD),
        (Call("shard", seed=2, dtype=torch.int64), FORWARD),
        "has other content on rank 1",
    ),
    "another dtype to shard": (
        (SHARD, FORWARD),
        (Call("shard", seed=1, dtype=torch.float64), FORWARD),
        "rank 0 has torch.float32 48 × 4 × 8 along dimension 0, rank 1 has torch.float64",
    ),
    "shard more often": (
        (SHARD, FORWARD),
        (SHARD, SHARD, FORWARD),
        "rank 0 has called it once, rank 1 2 times",
    ),
    "other sinks": (
        (Call("sinks", seed=1), FORWARD),
        (Call("sinks", seed=2), FORWARD),
        "'sinks' of attention has other content on rank 1",
    ),
    "shard fails alone": (
        (FORWARD, FORWARD),
        (Call("whole"), FORWARD, FORWARD),
        "Rank 1 could not do its last call of shard",
    ),
}
ALIKE: dict[str, tuple[Program, Program, int]] = {  # and the calls that every rank raises at
    "the same calls": ((SHARD, TRAIN, Call("train", mask=1, batch=2), UNSHARD, PLAN, TRAIN),) * 2 + (0,),
    "shard on one rank alone": ((SHARD, FORWARD, TRAIN), (FORWARD, TRAIN), 0),
    "an error of one rank": ((FORWARD, FORWARD, TRAIN, TRAIN), (FORWARD, Call("bad"), TRAIN, TRAIN), 1),
}
EACH = re.compile(r"each of ranks [\d, and]+ ")
CHECKS = ("first", "always")
Case = tuple[str, str, str]
"""scenario, strategy, way of checking"""
SAMPLE: list[Case] = [
    (name, STRATEGIES[number % len(STRATEGIES)], CHECKS[number % 2])
    for number, name in enumerate([*SCENARIOS, *ALIKE])
]


def programs(name: str, world: int) -> list[Program]:
    """By rank: rank 1 is the one that differs."""
    first, second = {**SCENARIOS, **ALIKE}[name][:2]
    return [second if rank == 1 else first for rank in range(world)]


def outcomes(cases: list[Case], world: int) -> dict[Case, list[list[str]]]:
    """By case, the outcomes of calls by rank. The same ranks run all of them: to start ranks takes longer."""
    by_rank = on_ranks(
        run_all,
        world,
        [(strategy, check, programs(name, world)) for name, strategy, check in cases],
        timeout_s=60.0,
    )
    return {case: [of_rank[number] for of_rank in by_rank] for number, case in enumerate(cases)}


@cache
def sample() -> dict[Case, list[list[str]]]:
    return outcomes(SAMPLE, 2)


def check_outcomes(case: Case, of_ranks: list[list[str]]) -> None:
    name = case[0]
    assert not any(outcome.startswith(("wrong", "late")) for of_rank in of_ranks for outcome in of_rank), (
        case,
        of_ranks,
    )
    errors = [[outcome for outcome in of_rank if outcome != RIGHT] for of_rank in of_ranks]
    if name in ALIKE:
        assert [len(of_rank) for of_rank in errors] == [ALIKE[name][2]] * len(of_ranks), (case, of_ranks)
        return
    first = {
        next((error for error in of_rank if SCENARIOS[name][2] in EACH.sub("rank 0 ", error)), None)
        for of_rank in errors
    }
    assert len(first) == 1 and str(next(iter(first))).startswith("UserError"), (case, of_ranks)


@pytest.mark.parametrize("case", SAMPLE, ids=" ".join)
def test_every_rank_says_in_what_ranks_differ_or_all_are_right(case: Case):
    check_outcomes(case, sample()[case])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_scenario_with_each_strategy(strategy: str, world: int):
    cases = [(name, strategy, check) for name in [*SCENARIOS, *ALIKE] for check in CHECKS]
    for case, of_ranks in outcomes(cases, world).items():
        check_outcomes(case, of_ranks)


def random_programs(seed: int) -> list[Program]:
    """Programs of two ranks: the second has one call less, two in another order, or one with another
    argument."""
    rng = random.Random(seed)

    def call() -> Call:
        kind = rng.choice(("forward", "train", "train", "backward", "shard", "unshard", "with_mask"))
        mask = rng.randrange(len(MASKS))
        batch = rng.choice((None, None, 2))
        return Call(
            kind, mask, batch, seed=0 if kind == "unshard" else 10 * mask + (batch or 0)
        )  # what ranks cannot tell apart is equal

    calls = [call() for _ in range(rng.randint(3, 7))]
    edited = list(calls)
    place = rng.randrange(len(calls))
    edit = rng.choice(("drop", "swap", "change"))
    if edit == "drop":
        del edited[place]
    elif edit == "swap":
        edited.insert(rng.randrange(len(calls)), edited.pop(place))
    else:
        edited[place] = replace(
            edited[place],
            **rng.choice(
                [
                    {"mask": (edited[place].mask + 1) % len(MASKS)},
                    {"batch": 3},
                    {"dtype": torch.float64},
                    {"kind": "bad"},
                    {"kind": "whole"},
                ]
            ),
        )
    return [calls, edited]


def check_random(seed: int, of_ranks: list[list[str]]) -> None:
    """All is right, or every rank raises. Where calls look alike, one that is left out is noticed at
    `close`."""
    assert not any(outcome.startswith("late") for of_rank in of_ranks for outcome in of_rank), (
        random_programs(seed),
        of_ranks,
    )
    wrong = [[outcome for outcome in of_rank if outcome != RIGHT] for of_rank in of_ranks]
    raised = [any(outcome != "wrong" for outcome in of_rank) for of_rank in wrong]
    assert all(raised) or not any(wrong) or _failed_alone(of_ranks), (random_programs(seed), of_ranks)


def _failed_alone(of_ranks: list[list[str]]) -> bool:
    """A rank had an error in `shard`, after which nothing was sent, and the other has right results."""
    return not any("wrong" in of_rank for of_rank in of_ranks) and not any(
        "Ranks" in str(of_rank) for of_rank in of_ranks
    )


@pytest.mark.parametrize(
    ("strategies", "count"),
    [(("ring_p2p", "usp"), 10), *(pytest.param((name,), 60, marks=pytest.mark.slow) for name in STRATEGIES)],
)
def test_one_call_that_differs_is_raised_everywhere_or_changes_nothing(
    strategies: tuple[str, ...], count: int
):
    cases = [
        (strategies[seed % len(strategies)], CHECKS[seed % 2], random_programs(seed)) for seed in range(count)
    ]
    for seed, of_ranks in enumerate(zip(*on_ranks(run_all, 2, cases, timeout_s=60.0), strict=True)):
        check_random(seed, list(of_ranks))


def lagging(comm: Comm, programs: list[Program]) -> tuple[list[str], int]:
    """As on GPUs: messages leave before headers are compared, and then what waits for a peer is released."""
    with (
        patch("longca.cp.context.Agreement", lambda comm, waits: Agreement(comm, waits=False)),
        patch.object(Comm, "abandon") as abandon,
    ):
        return run(comm, "ulysses", "first", programs), abandon.call_count


def test_where_messages_leave_first_no_result_is_handed_out_before_ranks_agree():
    warm = [*WARM, TRAIN]
    of_ranks = on_ranks(lagging, 2, [[*warm, FORWARD, TRAIN], [*warm, OTHER, TRAIN]], timeout_s=60.0)
    for of_rank, num_abandoned in of_ranks:
        assert of_rank[:3] == [RIGHT] * 3 and of_rank[-1] == RIGHT
        assert "forward number 4 with different arguments" in of_rank[3]
        assert "cannot be used any more" in of_rank[4]
        assert num_abandoned == 1


def by_gloo(comm: Comm, programs: list[Program]) -> list[str]:
    with patch.object(SharedHeaders, "attempt", lambda group: None):
        assert isinstance(open_headers(comm), GatheredHeaders)
        return run(comm, "ring_p2p", "first", programs)


def test_headers_of_ranks_on_several_machines():
    for of_rank in on_ranks(by_gloo, 3, programs("layers in another order", 3), timeout_s=60.0):
        assert of_rank[:2] == [RIGHT] * 2
        assert "each of ranks 0 and 2 has mask causal" in of_rank[2]


def late(comm: Comm) -> list[str]:
    """Rank 1 comes too late to its second call."""
    programs = [[FORWARD, FORWARD, FORWARD], [FORWARD, Call("pause"), FORWARD]]
    return run(comm, "ring_p2p", "first", programs)


def test_a_rank_that_comes_late_is_named_within_the_timeout_and_hears_of_it():
    waiting, other = on_ranks(late, 2, timeout_s=60.0)
    assert waiting[0] == other[0] == RIGHT
    assert waiting[1].startswith("PeerLost: rank 1 has not come within 5 s")
    assert waiting[2].startswith("PeerLost: this context ended before: rank 1 has not come")
    assert other[2].startswith("PeerLost: rank 0 cannot go on: rank 1 has not come within 5 s")


def failing(comm: Comm, mask: Mask) -> list[str]:
    """Rank 1 runs out of memory within a call; ranks then make one call more."""
    calls = []
    cp = context_parallel(mask, None, "ring_p2p", num_q_heads=4, head_dim=8, timeout=2.0)
    x = [tensor[cp.positions] for tensor in whole(0)[:3]]
    failure = (
        patch.object(PreparedPlan, "forward", side_effect=MemoryError("no room"))
        if comm.rank
        else nullcontext()
    )
    for _ in range(2):
        with failure:
            try:
                cp.attention(*x)
                calls.append(RIGHT)
            except (MemoryError, UserError, PeerLost) as error:
                calls.append(f"{type(error).__name__}: {error}")
    comm.barrier()
    return calls


@pytest.mark.parametrize(
    ("mask", "first", "second"),
    [
        (MASKS[0], "PeerLost: another rank is gone", "PeerLost: this context ended before"),
        (
            build_mask("causal_document", seqlen=48, documents=np.array([24, 24])),
            RIGHT,
            "PeerLost: rank 1 cannot go on: MemoryError: no room",
        ),
    ],
    ids=["messages", "no messages"],
)
def test_after_a_failure_within_a_call_every_rank_learns_that_the_context_has_ended(
    mask: Mask, first: str, second: str
):
    other, failed = on_ranks(failing, 2, mask, timeout_s=60.0)
    assert failed == [
        "MemoryError: no room",
        "UserError: This context cannot be used any more: MemoryError: no room. "
        "Make a new one with context_parallel on every rank",
    ]
    assert other[0].startswith(first) and other[1].startswith(second)
