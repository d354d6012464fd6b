"""Ranks that are measured together also end together: nobody waits for one that is gone."""

import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from longca.lab.bench.measure.result import PEER_LOST, culprit
from longca.lab.bench.workers import group as group_module
from longca.lab.bench.workers.pool import Pool
from tests.helpers.bench.misbehaving import MEASURE, cp_cell
from tests.lab.bench.test_worker import is_running

pytestmark = pytest.mark.long

START_S = 30.0  # of two processes on a busy machine: not part of the time that a failure may take
GRACE_S = 0.5


@pytest.fixture(autouse=True)
def _no_orphans(pool) -> Iterator[None]:
    before = [rank.process.pid for group in pool._groups.values() for rank in group.ranks]
    yield
    alive = [rank.process.pid for group in pool._groups.values() for rank in group.ranks]
    assert all(map(is_running, alive)) and not any(map(is_running, set(before) - set(alive)))


def lives(pool: Pool, world: int = 2) -> bool:
    return ("cp", None, world) in pool._groups


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_all_ranks_are_measured(pool, world):
    results = [
        pool.measure(cp_cell("ulysses", world, direction=direction, num_kv_heads=1, num_q_heads=3), MEASURE)
        for direction in ("fwd", "bwd")
    ]
    for result in results:
        assert result.outcome.status == "ok" and len(result.samples.time_ms) == world == len(result.nodes)
    assert lives(pool, world)


def test_ranks_of_one_machine_are_reached_from_nowhere_else(pool):
    assert pool.measure(cp_cell("ulysses"), MEASURE).outcome.status == "ok"
    (group,) = (group for key, group in pool._groups.items() if key == ("cp", None, 2))
    open_at = {
        connection.laddr.ip
        for rank in group.ranks
        for connection in psutil.Process(rank.process.pid).net_connections("inet")
    }
    assert open_at == {"127.0.0.1"}, "gloo's own"
    if sys.platform == "linux":
        assert all(rank.placement.rendezvous.startswith("file:") for rank in group.ranks), (
            "no port of a store"
        )


@pytest.mark.parametrize(("strategy", "status"), [("rank_raises", "error"), ("rank_hungry", "oom")])
def test_a_failure_that_all_ranks_know_of_leaves_the_group_fit(pool, strategy, status):
    result = pool.measure(cp_cell(strategy), MEASURE)
    assert result.outcome.status == status and "rank 1 failed at: prepare" in result.notes
    assert lives(pool)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kernel", "status", "words"),
    [
        pytest.param("midway_hungry", "oom", "requested_bytes=2147483648", marks=pytest.mark.slow),
        pytest.param("midway_raises", "error", "no key", marks=pytest.mark.slow),
        pytest.param(
            "midway_killed_while_timed", "error", "rank 1: it was killed by SIGKILL", marks=pytest.mark.slow
        ),
        ("midway_sleeps", "timeout", "seconds=1.0"),
    ],
)
def test_a_rank_that_fails_between_messages_ends_all_and_the_next_cell_runs(
    pool, monkeypatch, kernel, status, words, world
):
    monkeypatch.setattr(group_module, "GRACE_SECONDS", GRACE_S)
    timeout_s = 1.0 if kernel == "midway_sleeps" else 600.0
    begun = time.monotonic()
    result = pool.measure(
        cp_cell("ulysses", world, kernel), MEASURE.model_copy(update={"timeout_s": timeout_s})
    )
    assert time.monotonic() - begun < START_S
    assert result.outcome.status == status and words in repr(result.outcome) and result.samples is None
    if status == "timeout":
        assert any(note.startswith("rank 1 was at midway_sleeps.py:") for note in result.notes)
    elif "SIGKILL" not in words:
        assert f"failed on rank 1 of {world} alone" in result.notes
    assert not lives(pool, world)
    assert pool.measure(cp_cell("ulysses", world), MEASURE).outcome.status == "ok"


def test_a_killed_rank_is_named(pool):
    outcome = pool.measure(cp_cell("rank_killed"), MEASURE).outcome
    assert outcome.type == "WorkerDied" and "rank 1: it was killed by SIGKILL" in outcome.message
    assert not lives(pool)


def test_a_rank_that_misses_another_is_not_to_blame():
    lost, boom = ({"status": "error", "type": name, "message": name} for name in (PEER_LOST, "Boom"))
    results = {
        rank: group_module.Result.model_validate({"outcome": outcome})
        for rank, outcome in enumerate((lost, boom, lost))
    }
    assert culprit(results, [0, 1, 2]) == 1
    assert culprit(results, [0, 2]) == 0
