"""Bytes between each two ranks: their sums are the study's formula and what records counted, and a placement
only moves them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from longca.core.schema import CallSpec
from longca.cp.partition.mesh import Mesh, formula_bytes, hybrid
from longca.cp.partition.sharding import contiguous
from longca.cp.schedule.pair_traffic import PairTraffic, leaves_node, swapped
from longca.cp.schedule.ring_and_gather import Ring
from longca.masks import build_mask

TOKENS = 256  # of a rank


def traffic(mesh: Mesh, direction: Any = "fwd") -> PairTraffic:
    seqlen = mesh.world * TOKENS
    plan = Ring().plan(build_mask("full", seqlen=seqlen), contiguous(seqlen, mesh.ring))
    return PairTraffic.of(mesh, plan, CallSpec(16, 8, 64, "bf16", direction))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("mesh", [Mesh(1, 8), Mesh(8), Mesh(2, 8), Mesh(3, 4), Mesh(12, 8)], ids=str)
def test_each_rank_sends_the_bytes_of_the_formula(mesh: Mesh, direction: str) -> None:
    sent = traffic(mesh, direction)
    problem: Any = SimpleNamespace(
        mask=SimpleNamespace(seqlen_q=mesh.world * TOKENS),
        num_q_heads=16,
        num_kv_heads=8,
        head_dim=64,
        dtype=SimpleNamespace(itemsize=2),
        needs_backward=direction == "bwd",
    )
    for sums in ((sent.heads + sent.kv).sum(axis=axis) for axis in (0, 1)):
        assert sums.tolist() == pytest.approx([formula_bytes(problem, mesh)] * mesh.world, rel=1e-12)
    assert not np.diag(sent.heads + sent.kv).any(), "nobody sends to itself"


def test_ranks_of_a_head_group_and_of_a_ring_exchange_and_no_others() -> None:
    mesh = Mesh(3, 4)
    sent = traffic(mesh)
    for rank in range(mesh.world):
        assert set(np.flatnonzero(sent.heads[rank])) == set(mesh.group(rank)) - {rank}
        assert np.flatnonzero(sent.kv[rank]).tolist() == [(rank + 4) % 12], "the next rank of its ring"
    assert sent.kv_hops.sum(axis=1).tolist() == [2] * 12


def test_groups_inside_nodes_keep_all_to_alls_inside_them_and_swapped_groups_do_not() -> None:
    mesh = Mesh(8, 8)
    right = traffic(mesh)
    between = leaves_node(64)
    released = right.placed(swapped(mesh))
    assert not (right.heads * between).any() and (right.kv * ~between).sum() == 0
    assert (released.heads * ~between).sum() == 0, "one rank of a head group on each node"
    assert not (released.kv * between).any(), "a ring of eight neighbours"
    for before, after in (
        (right.heads, released.heads),
        (right.kv, released.kv),
        (right.kv_hops, released.kv_hops),
    ):
        assert before.sum() == after.sum()


def test_a_place_is_where_a_rank_goes() -> None:
    mesh = Mesh(2, 4)
    assert swapped(mesh) == [0, 2, 4, 6, 1, 3, 5, 7]
    right = traffic(mesh)
    moved = right.placed(swapped(mesh))
    assert moved.heads[2, 4] == right.heads[1, 2] and moved.kv[6, 7] == right.kv[3, 7] > 0


@pytest.mark.slow
def test_they_are_the_bytes_that_records_counted() -> None:
    from longca.lab.store.load import committed, load

    meshes = {
        "usp": hybrid,
        "ulysses": lambda world, _: Mesh(1, world),
        "ring_p2p": lambda world, _: Mesh(world),
    }
    cells = {
        entry.cell_id: entry
        for entry in load(*committed("h200-cp")).records
        if entry.cell.strategy in meshes and entry.cell.mask == "full" and entry.costs.get("moved_bytes")
    }
    assert cells
    for entry in cells.values():
        cell = entry.cell
        mesh = meshes[str(cell.strategy)](cell.world, cell.num_kv_heads)
        schedule = Ring(two_way=mesh.ring > 2)
        plan = schedule.plan(build_mask("full", seqlen=cell.seqlen), contiguous(cell.seqlen, mesh.ring))
        actual = PairTraffic.of(mesh, plan, cell.call_spec)
        assert (actual.heads + actual.kv).sum(axis=1).max() == entry.costs["moved_bytes"], cell
