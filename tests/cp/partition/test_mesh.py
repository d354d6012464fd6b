"""Ranks that divide heads and ranks that divide keys."""

from collections.abc import Callable

import pytest

from longca.cp.partition.mesh import RANKS_PER_NODE, Mesh, double_ring, hybrid, windowed


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
