"""Connections between ranks: process groups of torch, which concern their own ranks alone; and what ranks of
one machine share: the network interface, which is loopback alone, and small files of shared memory that all
of them have open."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from longca.core import boot_id

if TYPE_CHECKING:
    from datetime import timedelta

GLOO = "GLOO_SOCKET_IFNAME"
LOOPBACK_NAMES = ("lo", "lo0")  # of Linux, of BSD and macOS


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
        with gloo_interface(), _connected_alone():
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


@contextmanager
def gloo_interface() -> Iterator[None]:
    """Have gloo listen at loopback alone for groups that are made in this block, if all ranks are on one
    machine. gloo takes the address of the host name otherwise, which others may reach.

    An interface that the site has chosen by `GLOO_SOCKET_IFNAME` stays.
    """
    names = [name for _, name in socket.if_nameindex() if name in LOOPBACK_NAMES]
    if GLOO in os.environ or not names or not on_one_machine(os.environ):
        yield
        return
    os.environ[GLOO] = names[0]
    try:
        yield
    finally:
        os.environ.pop(GLOO, None)


def on_one_machine(environ: Mapping[str, str]) -> bool:
    """True if the variables of torchrun, or of `env://`, say that all ranks are on this machine."""
    if "LOCAL_WORLD_SIZE" in environ:
        return environ["LOCAL_WORLD_SIZE"] == environ.get("WORLD_SIZE")
    return loopback_address(environ.get("MASTER_ADDR", "")) is not None


def local_store(environ: Mapping[str, str]) -> tuple[str, socket.socket | None] | None:
    """(URL of torch's store at loopback, socket of rank 0 that listens there), where MASTER_ADDR names
    loopback and nobody has made the store: torch's own would listen at all addresses. None where torch has to
    find it.

    Raises OSError if the port is taken.
    """
    address = loopback_address(environ["MASTER_ADDR"])
    if address is None or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    port = int(environ["MASTER_PORT"])
    listener = socket.create_server((address, port), backlog=512) if environ["RANK"] == "0" else None
    return f"tcp://{address}:{port}", listener


def loopback_address(host: str) -> str | None:
    """The IPv4 address of a host name that is this machine's loopback; None for other names."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return None
    return str(address) if address.is_loopback else None


SHARED_MEMORY = "/dev/shm"


class GatheringRanks(Protocol):
    """The part of a `WorldGroup` that is needed here. Process groups import this module."""

    rank: int

    def gather(self, mine: Any) -> list[Any]: ...


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def open_on_all_ranks(
    group: GatheringRanks, num_bytes: int, purpose: str, use: Callable[[FileIO], T]
) -> tuple[T | None, str]:
    """Opens one new file, full of zeros, on all ranks. All ranks call it together.

    Args:
        purpose: a word for the name of the file.
        use: what this rank makes of the file, which belongs to the result from then on.

    Returns:
        The result, and "". None on all ranks where one of them has none, and the first reason.
    """
    file = _new_file(num_bytes, purpose) if group.rank == 0 else None
    reason = ""
    machines = group.gather([boot_id(), file.name if file is not None else ""])
    path = machines[0][1]
    is_shared = all(machine == machines[0][0] for machine, _ in machines)
    result = None
    if not path or not is_shared:
        reason = "ranks are on several machines" if path else f"no room in {_folder()}"
    else:
        try:
            file = FileIO(path, "r+") if file is None else file
            result = use(file)
        except Exception as error:  # whatever it is, the other ranks must hear of it
            reason = f"rank {group.rank}: {error}"
    reasons = [of_rank for of_rank in group.gather(reason) if of_rank]
    if group.rank == 0 and path:
        Path(path).unlink(missing_ok=True)  # it lives on while it is mapped, and nobody else can open it
    if not reasons:
        return result, ""
    for opened in filter(None, (result, file)):
        opened.close()
    return None, reasons[0]


def _folder() -> str:
    return SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else tempfile.gettempdir()


def _new_file(num_bytes: int, purpose: str) -> FileIO | None:
    """None where there is no room for it."""
    with suppress(OSError):
        fd, path = tempfile.mkstemp(prefix=f"longca-{purpose}-", dir=_folder())
        os.close(fd)
        file = FileIO(path, "r+")
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk would be a crash later
        except OSError:
            file.close()
            Path(path).unlink()
        else:
            return file
    return None
