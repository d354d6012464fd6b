"""Ranks of a group share symmetric memory whatever they have shared in other groups. The exchanges are written
as torch before 2.15 makes them: memory of GPUs takes GPUs."""  # noqa: E501

import gc
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from longca.cp.comm import meeting
from longca.cp.comm.backend import Comm
from longca.cp.comm.meeting import Meeting
from tests.helpers.cp.ranks import on_ranks

CPU = torch.device("cpu")
PATIENCE_S = 2.0


class Process:
    """The exchanges of one process, with a number for each, in whatever group."""

    def __init__(self) -> None:
        self._number = 0

    def exchange(self, store: Any, rank: int, world: int, mine: bytes) -> list[bytes]:
        keys = [f"CUDASymmetricMemory/{self._number}/{each}" for each in range(world)]
        self._number += 1
        store.set(keys[rank], mine)
        return store.multi_get(keys)

    def barrier(self, store: Any, world: int) -> None:
        key = f"CUDASymmetricMemory/{self._number}"
        self._number += 1
        if store.add(f"{key}/num_members", 1) == world:
            store.set(f"{key}/last_member", "1")
        store.wait([f"{key}/last_member"])

    def share(self, store: Any, rank: int, world: int) -> list[bytes]:
        """The words of all ranks as they share a buffer."""
        said = self.exchange(store, rank, world, b"pid %d" % rank)
        self.barrier(store, world)
        return said


def store_of(place: Meeting, prefix: str = "") -> Any:
    """As torch asks for it; with a prefix by its own store, which calls this one."""
    store = c10d._resolve_process_group(place.name).get_group_store()
    return c10d.PrefixStore(prefix, store) if prefix else store


def after_unequally_many(comm: Comm, prefix: str) -> list[list[bytes]]:
    """The words of three ranks that share memory, before and after two of them have shared more."""
    process = Process()
    both = dist.new_group([0, 1])
    of_all = Meeting(comm)
    said = [process.share(store_of(of_all, prefix), comm.rank, comm.world)]
    if comm.rank < 2:
        pair = Comm.over(both, CPU, PATIENCE_S)
        of_pair = Meeting(pair)
        for _ in range(3):
            process.share(store_of(of_pair, prefix), pair.rank, pair.world)
    return said + [process.share(store_of(of_all, prefix), comm.rank, comm.world) for _ in range(2)]


@pytest.mark.parametrize("prefix", ["", "symmetric_memory/1"])
def test_ranks_meet_that_have_shared_unequally_often(prefix: str):
    everybody = [b"pid 0", b"pid 1", b"pid 2"]
    assert on_ranks(after_unequally_many, 3, prefix, timeout_s=PATIENCE_S) == [[everybody] * 3] * 3


def without_a_peer(comm: Comm) -> tuple[float, str]:
    place = Meeting(comm)
    began_s = time.monotonic()
    reason = ""
    if comm.rank == 0:
        try:
            Process().exchange(store_of(place), 0, comm.world, b"")
        except RuntimeError as error:
            reason = str(error)
    else:
        time.sleep(PATIENCE_S)
    waited_s = time.monotonic() - began_s
    comm.gather(None)
    return waited_s, reason


def test_a_peer_that_does_not_come_is_heard_in_time():
    (waited_s, reason), _ = on_ranks(without_a_peer, 2, timeout_s=PATIENCE_S)
    assert PATIENCE_S <= waited_s < PATIENCE_S + 30 and "timeout" in reason.lower()


def leave(comm: Comm) -> bool:
    place = Meeting(comm)
    name = place.name
    assert store_of(place) is not None
    del place
    gc.collect()
    with pytest.raises(RuntimeError, match=name):
        c10d._resolve_process_group(name)
    return True


def test_a_meeting_leaves_no_group_behind():
    assert on_ranks(leave, 2) == [True, True]


def test_where_torch_counts_by_group_its_own_group_serves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meeting, "COUNTS_BY_GROUP", (2, 0))
    group = SimpleNamespace(torch_group=SimpleNamespace(group_name="of torch"))
    assert Meeting(cast(Any, group)).name == "of torch"
