"""Meshes of ranks: those that divide heads and those that divide keys; the heads and tokens of each rank."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.cp.partition.mesh import RANKS_PER_NODE, HeadPlan, Mesh, double_ring, hybrid, plan_heads, windowed
from longca.cp.partition.sharding import CANDIDATES, make_sharding
from longca.masks import build_mask


@pytest.mark.parametrize(
    ("world", "num_kv_heads", "ring", "heads"),
    [
        (1, 8, 1, 1),
        (2, 8, 1, 2),
        (2, 1, 2, 1),
        (3, 8, 3, 1),
        (3, 6, 1, 3),
        (4, 8, 2, 2),
        (4, 1, 4, 1),
        (6, 8, 3, 2),
        (8, 8, 2, 4),
        (16, 8, 2, 8),
        (96, 8, 12, 8),
        (96, 64, 12, 8),
        (96, 2, 48, 2),
    ],
)
def test_a_hybrid_has_both_dimensions_where_it_can(world: int, num_kv_heads: int, ring: int, heads: int):
    assert hybrid(world, num_kv_heads) == Mesh(ring, heads)


@pytest.mark.parametrize(
    ("world", "num_kv_heads", "ring", "heads", "window"),
    [
        (2, 8, 2, 1, 1),
        (3, 8, 3, 1, 1),
        (4, 8, 4, 1, 2),
        (6, 8, 6, 1, 3),
        (8, 8, 4, 2, 2),
        (8, 1, 8, 1, 4),
        (16, 8, 4, 4, 2),
        (64, 8, 16, 4, 2),
        (96, 8, 24, 4, 2),
        (96, 1, 96, 1, 8),
    ],
)
def test_a_double_ring_has_windows_where_it_can(
    world: int, num_kv_heads: int, ring: int, heads: int, window: int
):
    mesh = double_ring(world, num_kv_heads)
    assert (mesh, windowed(mesh)) == (Mesh(ring, heads), window)


@pytest.mark.parametrize("num_kv_heads", [1, 3, 8, 12])
@pytest.mark.parametrize("meshes", [hybrid, double_ring])
def test_meshes_are_of_all_ranks_and_need_no_copies_of_kv_heads(
    meshes: Callable[[int, int], Mesh], num_kv_heads: int
):
    for world in range(1, 65):
        mesh = meshes(world, num_kv_heads)
        assert mesh.world == world
        assert num_kv_heads % mesh.heads == 0, world
        assert mesh.heads * windowed(mesh) <= RANKS_PER_NODE, world
        assert mesh.ring % windowed(mesh) == 0, world


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_mesh_divides_the_tokens_of_a_plan(name: str):
    mesh = Mesh(ring=3, heads=2)
    placement = make_sharding(name, build_mask("causal", seqlen=61), mesh.ring)
    held = [mesh.positions(placement, rank) for rank in range(mesh.world)]
    assert np.array_equal(np.concatenate(held), placement.order)
    assert [list(mesh.group(3)), list(mesh.ring_of(3))] == [[2, 3], [1, 3, 5]]


@st.composite
def plans(draw: st.DrawFn) -> tuple[HeadPlan, int]:
    num_kv_heads = draw(st.integers(1, 16))
    ratio = draw(st.integers(1, 8))
    world = draw(st.integers(1, 96))
    return plan_heads(num_kv_heads * ratio, num_kv_heads, world), world


@given(plans())
def test_every_query_head_is_computed_once(planned: tuple[HeadPlan, int]):
    plan, world = planned
    assert len(plan.ranks) == world
    assert [head for share in plan.ranks for head in share.q] == list(range(plan.num_q_heads))


@given(plans())
def test_a_kernel_call_gives_every_query_head_its_own_kv_head(planned: tuple[HeadPlan, int]):
    plan, _ = planned
    ratio = plan.num_q_heads // plan.num_kv_heads
    for share in plan.ranks:
        if not share.q:
            assert not share.kv
            assert not share.local_kv
            continue
        assert len(share.q) % len(share.local_kv) == 0
        served = len(share.q) // len(
            share.local_kv
        )  # the rule of all kernels: query head h goes to KV head h // served
        assert [share.kv[share.local_kv[index // served]] for index in range(len(share.q))] == [
            head // ratio for head in share.q
        ]
        assert set(share.local_kv) == set(range(len(share.kv)))


@given(plans())
def test_kv_heads_are_sent_once_while_there_are_enough_of_them(planned: tuple[HeadPlan, int]):
    plan, world = planned
    if world <= plan.num_kv_heads:
        assert [head for share in plan.ranks for head in share.kv] == list(range(plan.num_kv_heads))
        assert not plan.replicated
        assert not any(share.expanded for share in plan.ranks)
    copies = sum(len(share.kv) for share in plan.ranks)
    assert plan.replicated == (copies > plan.num_kv_heads)
    assert copies <= plan.num_kv_heads + world


@given(plans())
def test_work_is_even_to_one_head_or_one_group(planned: tuple[HeadPlan, int]):
    plan, world = planned
    counts = [len(share.q) for share in plan.ranks]
    unit = plan.num_q_heads // plan.num_kv_heads if world <= plan.num_kv_heads else 1
    assert max(counts) - min(counts) <= unit


@given(plans(), st.data())
def test_mask_groups_are_those_of_the_kernel_call(planned: tuple[HeadPlan, int], data: st.DataObject):
    plan, world = planned
    num_groups = data.draw(
        st.sampled_from([n for n in range(1, plan.num_kv_heads + 1) if plan.num_kv_heads % n == 0])
    )
    for rank, share in enumerate(plan.ranks):
        groups = plan.mask_groups(rank, num_groups)
        if groups is None:
            assert num_groups > 1
            continue
        # what the kernel does with its own heads: the g-th G-th of them has group g
        for index, local in enumerate(share.local_kv):
            by_kernel = groups[index * len(groups) // len(share.local_kv)]
            assert by_kernel == share.kv[local] * num_groups // plan.num_kv_heads
    if world <= plan.num_kv_heads and num_groups == plan.num_kv_heads:
        assert all(plan.mask_groups(rank, num_groups) is not None for rank in range(world))


def test_an_example_cuts_through_groups():
    shares = plan_heads(8, 2, 3).ranks
    assert [share.q for share in shares] == [range(3), range(3, 6), range(6, 8)]
    assert [share.kv for share in shares] == [range(1), range(2), range(1, 2)]
    assert [share.local_kv for share in shares] == [(0,), (0, 1, 1), (0,)]
