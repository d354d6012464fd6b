"""Process groups of ranks that are in other groups as well."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from longca.cp.comm.backend import Comm
from longca.cp.comm.process_group import PeerLost
from tests.helpers.cp.ranks import on_ranks

CPU = torch.device("cpu")


def among_unequal_groups(comm: Comm) -> list[int]:
    """What two ranks say in a group of their own, where one of them is in a further group."""
    both, _ = (dist.new_group(ranks) for ranks in ([0, 1], [0, 2]))
    if comm.rank == 2:
        return []
    joined = Comm.over(both, CPU, 20.0)
    joined.stream("keys")
    return joined.gather(comm.rank)


def test_ranks_meet_that_are_in_unequally_many_groups():
    assert on_ranks(among_unequal_groups, 3) == [[0, 1], [0, 1], []]


def again_and_again(comm: Comm) -> tuple[int, int]:
    """The number of process groups before and after three communications of two ranks of three."""
    both = dist.new_group([1, 2])
    before = len(distributed_c10d._world.pg_names)
    for _ in range(3 if comm.rank else 0):
        joined = Comm.over(both, CPU, 20.0)
        assert joined.gather(comm.rank) == [1, 2]
        joined.close()
    return before, len(distributed_c10d._world.pg_names)


def test_closing_leaves_no_group_behind():
    assert all(before == after for before, after in on_ranks(again_and_again, 3))


def after_a_rank_that_did_not_come(comm: Comm) -> list[int]:
    if comm.rank == 0:
        with pytest.raises(PeerLost):
            Comm.over(dist.group.WORLD, CPU, 1.0)
    dist.barrier()
    return Comm.over(dist.group.WORLD, CPU, 20.0).gather(comm.rank)


def test_ranks_may_try_again():
    assert on_ranks(after_a_rank_that_did_not_come, 2) == [[0, 1], [0, 1]]


def beside_a_bound_gpu(comm: Comm) -> tuple[list[Any], torch.device | None]:
    """The GPUs that torch takes a default group to be bound to while groups are made, and afterwards."""
    default = dist.group.WORLD
    assert default is not None
    seen = []
    make = distributed_c10d._new_process_group_helper

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(default.bound_device_id)
        return make(*arguments, **options)

    default.bound_device_id = torch.device("cuda", comm.rank)
    try:
        with patch.object(distributed_c10d, "_new_process_group_helper", noted):
            joined = Comm.over(default, CPU)
            joined.stream("keys")
        joined.close()
        return seen, default.bound_device_id
    finally:
        default.bound_device_id = None


def test_groups_are_not_split_from_a_default_group_that_is_bound_to_a_gpu():
    """torch would split NCCL's communicator of all ranks, which waits for ranks that make no group."""
    for rank, (seen, bound) in enumerate(on_ranks(beside_a_bound_gpu, 2)):
        assert seen == [None, None] and bound == torch.device("cuda", rank)
