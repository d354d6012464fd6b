"""A small file of shared memory that all ranks of one machine have open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from longca.core import boot_id

if TYPE_CHECKING:
    from longca.cp.comm.process_group import WorldGroup

SHARED_MEMORY = "/dev/shm"


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def open_on_all_ranks(
    group: WorldGroup, num_bytes: int, purpose: str, use: Callable[[FileIO], T]
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
