"""The time model of whole strategies."""

from dataclasses import replace

import numpy as np
import pytest

from longca.core.plugin import Registry
from longca.cp.schedule.planner import CALL_S, LinkSpeeds
from longca.cp.schedule.timeline import rank_times
from longca.cp.schedule.work_partition import HeadCost, WorkPartition, estimated_s, received_head_bytes
from tests.helpers.cp.case import Case

STRATEGIES = ("loongtrain", "ring_allgather", "ring_p2p", "ulysses", "usp")
FREE = LinkSpeeds(intra_node_bytes_per_s=1e30, inter_node_bytes_per_s=1e30, message_s=0.0)


def divided(
    strategy: str, mask: str, world: int, heads: tuple[int, int] = (16, 4), **how
) -> tuple[WorkPartition, Case]:
    case = Case(mask, 64 * world, *heads, strategy=strategy)
    return Registry("strategy").load(strategy).partition_work(
        case.problem(), Registry("kernel").load("naive"), world, **how
    ), case


def steps_of(division: WorkPartition, pair_s: float) -> dict[tuple[int, int], np.ndarray]:
    """Kernels at one rate, so that ranks take what their areas are."""
    return {
        (index, number): len(chunk.q[number])
        * pair_s
        * division.plan_of(division.mask_groups(chunk, number)).step_areas
        for index, chunk in enumerate(division.chunks)
        for number in range(division.mesh.heads)
        if chunk.q[number]
    }


@pytest.mark.parametrize("world", [2, 8, 12])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_moves_for_nothing_leaves_what_is_computed_and_links_only_add(strategy: str, world: int):
    for mask in ("full", "causal", "causal_document"):
        division, case = divided(strategy, mask, world)
        steps, problem = steps_of(division, 1e-9), case.problem()
        for backward in (False, True):
            free, near, slow = (
                rank_times(division, problem.call_spec, steps, links, backward=backward)
                for links in (
                    FREE,
                    LinkSpeeds(ranks_per_node=world),
                    LinkSpeeds(intra_node_bytes_per_s=1e7, inter_node_bytes_per_s=1e6),
                )
            )
            work = sum(x.sum() for x in steps.values())
            np.testing.assert_allclose(free.compute_s.sum(), work)
            assert np.all(free.total_s >= free.compute_s * (1 - 1e-12))
            assert np.all(near.total_s >= free.total_s * (1 - 1e-12)) and np.all(slow.total_s >= near.total_s)
            assert slow.total_s.max() > free.total_s.max()
            np.testing.assert_allclose(near.free_s, free.total_s)
            np.testing.assert_allclose(free.exposed, 0, atol=1e-12)
            assert (
                np.all(slow.exposed <= 1)
                and np.all(near.exposed >= 0)
                and slow.exposed.max() > near.exposed.max()
            )
    division, case = divided(strategy, "full", world)
    alike = rank_times(division, case.problem().call_spec, steps_of(division, 1e-9), FREE, backward=True)
    np.testing.assert_allclose(alike.total_s, alike.compute_s, err_msg="ranks that are alike do not wait")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_is_its_kernel(strategy: str):
    division, case = divided(strategy, "causal", 1)
    (step_s,) = steps_of(division, 1e-9).values()
    times = rank_times(division, case.problem().call_spec, {(0, 0): step_s}, LinkSpeeds(), backward=True)
    assert times.total_s == times.compute_s == step_s.sum()
    assert times.exposed == 0


def test_ranks_without_heads_compute_nothing():
    division, case = divided("ulysses", "full", 6, (4, 2))
    times = rank_times(
        division, case.problem().call_spec, steps_of(division, 1e-9), LinkSpeeds(), backward=False
    )
    assert times.compute_s.shape == (1, 6)
    assert np.count_nonzero(times.compute_s) == 4
    assert np.all(times.exposed[times.compute_s == 0] == 0)


def test_heads_alone_take_what_their_chunks_were_chosen_by():
    """The loads are the same: `HeadCost` adds a kernel call's own time, which is measured here."""
    division, case = divided("ulysses", "full", 2, (64, 8), weights=(1, 2, 1))
    problem = replace(case.problem(), needs_backward=False)
    head_s = 1e-9 * problem.mask.area
    calls = {
        key: step_s + CALL_S * (np.arange(step_s.shape[1]) == 0)
        for key, step_s in steps_of(division, 1e-9).items()
    }
    times = rank_times(division, problem.call_spec, calls, LinkSpeeds(), backward=False)
    load = HeadCost(head_s, received_head_bytes(problem.call_spec, problem.mask.seqlen_q, 2))
    np.testing.assert_allclose(times.total_s, estimated_s(division.chunks, load, needs_backward=False))


def test_groups_on_several_hosts_take_the_slower_link():
    division, case = divided("ulysses", "full", 4, (4, 4))
    near, far = (
        rank_times(
            division,
            case.problem().call_spec,
            steps_of(division, 1e-9),
            LinkSpeeds(ranks_per_node=size),
            backward=False,
        )
        for size in (4, 2)
    )
    assert np.all(far.total_s > near.total_s)


def test_prepare_follows_the_division():
    from tests.helpers.cp.virtual import on_virtual_ranks

    for strategy in ("ring_p2p", "usp", "ulysses"):
        division, case = divided(strategy, "causal", 4)
        notes = on_virtual_ranks(case.run, 4)[0]["notes"]
        if strategy != "ulysses":
            assert notes[0].startswith(f"{division.plan.schedule} of {division.mesh.ring}")
            assert any(division.plan.sharding.name in note for note in notes)
        assert ("chunks of" in " ".join(notes)) == (len(division.chunks) > 1)
