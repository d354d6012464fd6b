"""`longca.context_parallel` over gloo: results, gradients, masks that share a sharding, groups of a mesh."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from longca.cp.comm.backend import Comm
from longca.cp.comm.process_group import PeerLost
from longca.cp.context import context_parallel
from tests.helpers.cp.public_calls import (
    CAUSAL,
    DOCUMENTS,
    HEADS,
    OWN,
    TOLERANCE,
    WINDOW,
    both_ways,
    error,
    inputs,
    refusal,
    results,
)
from tests.helpers.cp.ranks import on_ranks


@pytest.mark.parametrize("strategy", [*OWN, "usp(heads=2)"])
def test_results_are_those_of_one_device_with_masks_that_share_a_sharding(strategy: str):
    for of_rank in results():
        assert error(of_rank[strategy][0], DOCUMENTS) < TOLERANCE
        assert error(of_rank[strategy][1], WINDOW) < TOLERANCE
        assert of_rank[f"{strategy} is"] == strategy


@pytest.mark.parametrize("strategy", OWN)
def test_the_same_inputs_give_the_same_bits(strategy: str):
    for of_rank in results():
        for other in ("again", "under autocast"):
            assert all(
                torch.equal(x, of_rank[f"{strategy} {other}"][name])
                for name, x in of_rank[strategy][0].items()
            )


def test_sequences_of_a_batch_and_gradients_of_the_whole():
    for of_rank in results():
        assert torch.equal(*of_rank["batch"])
        assert torch.equal(*of_rank["of the whole"])


def groups_of_a_mesh(comm: Comm) -> dict[str, Any]:
    """Two groups of two ranks that do different masks at once; and a rank that goes away."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    mask = (DOCUMENTS, CAUSAL)[comm.rank // 2]
    cp = context_parallel(mask, mesh["cp"], "ring_p2p", timeout=1.0, **HEADS)
    facts: dict[str, Any] = {
        "error": error(both_ways(cp), mask),
        "ranks": (cp.rank, cp.world),
        "square": refusal(lambda: context_parallel(mask, mesh, **HEADS)),
    }
    apart = dist.new_group([0, 3])
    facts["outside"] = refusal(lambda: context_parallel(mask, apart, **HEADS)) if comm.rank in (1, 2) else ""
    q, k, v, _ = map(cp.shard, inputs())
    facts["lost"] = comm.rank % 2 == 0
    if comm.rank % 2:
        with pytest.raises(PeerLost):
            cp.attention(q, k, v)
        facts["lost"] = True
    comm.barrier()
    return facts


def test_groups_of_a_device_mesh_and_a_lost_peer():
    for rank, actual in enumerate(on_ranks(groups_of_a_mesh, 4)):
        assert actual["error"] < TOLERANCE
        assert actual["ranks"] == (rank % 2, 2)
        assert "Give one dimension, as mesh['cp']" in actual["square"]
        assert "not in the group" in actual["outside"] or rank in (0, 3)
        assert actual["lost"]
