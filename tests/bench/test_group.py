"""Ranks that are measured together also end together: nobody waits for one that is gone."""

from collections.abc import Iterator

import pytest

from longca.bench import group as group_module
from longca.bench.pool import Pool
from tests.bench.misbehaving import MEASURE, cp_cell
from tests.bench.test_worker import is_running


@pytest.fixture(scope="module")
def pool(plugins, tmp_path_factory) -> Iterator[Pool]:
    with Pool("cpu", tmp_path_factory.mktemp("logs")) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _no_orphans(pool) -> Iterator[None]:
    before = [rank.process.pid for group in pool._groups.values() for rank in group.ranks]
    yield
    alive = [rank.process.pid for group in pool._groups.values() for rank in group.ranks]
    assert all(map(is_running, alive)) and not any(map(is_running, set(before) - set(alive)))


def lives(pool: Pool, strategy: str) -> bool:
    return any(key and key[2] == strategy for key in pool._groups)


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_are_measured(pool, world):
    results = [pool.measure(cp_cell("ulysses", world, direction=direction, num_kv_heads=1, num_q_heads=3), MEASURE)
               for direction in ("fwd", "bwd")]
    for result in results:
        assert result.outcome.status == "ok" and len(result.samples.time_ms) == world == len(result.nodes)
    assert lives(pool, "ulysses")


@pytest.mark.parametrize("strategy", ["rank_killed", "rank_killed_midway"])
def test_a_killed_rank_is_named(pool, strategy):
    outcome = pool.measure(cp_cell(strategy), MEASURE).outcome
    assert outcome.type == "WorkerDied" and "rank 1: it was killed by SIGKILL" in outcome.message
    assert not lives(pool, strategy)


@pytest.mark.parametrize(("strategy", "status"), [("rank_raises", "error"), ("rank_hungry", "oom")])
def test_a_failure_that_all_ranks_know_of_leaves_the_group_fit(pool, strategy, status):
    result = pool.measure(cp_cell(strategy), MEASURE)
    assert result.outcome.status == status and "rank 1 failed at: prepare" in result.notes
    assert lives(pool, strategy)


def test_a_rank_that_fails_alone_ends_the_others(pool, monkeypatch):
    monkeypatch.setattr(group_module, "GRACE_SECONDS", 0.5)
    result = pool.measure(cp_cell("rank_raises_midway"), MEASURE)
    assert result.outcome.status == "error" and result.outcome.type == "KeyError" and "no key" in result.outcome.message
    assert "failed on rank 1 of 2 alone" in result.notes and not lives(pool, "rank_raises_midway")


def test_a_rank_that_hangs_ends_with_the_cells_time(pool):
    result = pool.measure(cp_cell("rank_sleeps"), MEASURE.model_copy(update={"timeout_s": 1.0}))
    assert result.outcome.status == "timeout" and not lives(pool, "rank_sleeps")
