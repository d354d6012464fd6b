"""Further process groups of torch, which concern their own ranks alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta


def new_group(members: Sequence[int], backend: str, timeout: timedelta, options: Any = None) -> Any:
    """A further process group of these ranks. They make their groups in the same order; others take no part.

    `torch.distributed.new_group` names a group by what its rank has made before. Where one rank is in a group
    more than another, their names differ, and ranks that wait for each other under two names never meet. Here
    the ranks count together, in the store of the default group.

    Args:
        members: numbers in the default group, in ascending order.
        options: of the backend; their timeout is set.

    Returns:
        `torch.distributed.ProcessGroup`.

    Raises:
        RuntimeError: a rank has not come in time. Torch raises another error for each backend.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if options is not None:
        options._timeout = timeout
    store = distributed_c10d._get_default_store()
    ranks = "_".join(map(str, members))
    meeting = f"longca/{ranks}"
    number = (store.add(meeting, 1) - 1) // len(members)  # none comes again before all have come
    name: Any = f"{meeting}/{number}"
    try:
        with _connected_alone():
            group, _ = distributed_c10d._new_process_group_helper(
                len(members),
                members.index(dist.get_rank()),
                list(members),
                dist.Backend(backend),
                store,
                name,
                options,
                timeout=timeout,
            )
    except BaseException:
        # whoever is first to give it up closes it: ranks that come from now on meet under the next name
        with suppress(RuntimeError):  # the store may be gone, and is not the reason
            if store.add(f"{meeting}, given up/{number}", 1) == 1:
                store.add(meeting, (number + 1) * len(members) - store.add(meeting, 0))
        raise
    distributed_c10d._world.pg_group_ranks[group] = {member: rank for rank, member in enumerate(members)}
    return group


@contextmanager
def _connected_alone() -> Iterator[None]:
    """Have torch connect the ranks of a group that is made in this block, and no others.

    Where the default group is bound to a GPU (`init_process_group(device_id=…)`), torch would split its NCCL
    communicator. A split waits for all ranks of the default group, and some may make no group here.
    """
    import torch.distributed as dist

    default: Any = dist.group.WORLD
    bound = default.bound_device_id
    default.bound_device_id = None
    try:
        yield
    finally:
        default.bound_device_id = bound
