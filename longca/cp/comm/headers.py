"""Headers: a short text of each rank for every call, which all ranks read on the host.

Ranks of one machine write headers into a small file that all have mapped. That costs a few microseconds and
no system call, so each call of an attention layer on a GPU can have a header. Other ranks use a process
group of their own over gloo.

A header has a fixed place and size, so ranks that call different things can still read each other's
headers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
import zlib
from contextlib import suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from longca.core.host import boot_id
from longca.cp.comm.process_group import PeerLost, as_peer_lost

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup

MAX_BYTES = 4080
"""of a header, in UTF-8"""
SLOT_BYTES = 4096
SLOTS = 2  # a rank writes header n + 2 when it has read all headers n + 1, and their ranks all headers n
HEAD = struct.Struct("<QII")  # number of the header, its length, checksum
SHARED_MEMORY = "/dev/shm"
SPIN_S = 200e-6  # ranks of one machine mostly come within so long of each other, and a sleep takes as long at least
MIN_SLEEP_S, MAX_SLEEP_S = 20e-6, 1e-3
LEAST_S = 1e-3
LOOK_S = 0.1
"""time between two looks whether a rank that is waited for still lives"""


class Headers(Protocol):
    """The exchange of headers among the ranks of a group.

    The n-th `post` of a rank belongs to the n-th of each other rank.
    """

    is_quick: bool
    """a header is read within microseconds of its post"""

    def post(self, header: bytes) -> None:
        """Shows this rank's next header to the others, without waiting. The one before must have been read."""
        ...

    def read(self, timeout_s: float) -> list[bytes]:
        """The headers of all ranks that belong to the last one posted, by rank.

        Raises:
            PeerLost: a rank has posted none within so many seconds of this rank's, or is gone.
        """
        ...

    def replace(self, header: bytes) -> None:
        """Shows another header in place of the last one, where ranks have not read it yet."""
        ...

    def close(self) -> None: ...


def open_headers(group: WorldGroup) -> Headers:
    """Headers by shared memory where all ranks can map one file, else by gloo. All ranks call it together."""
    return SharedHeaders.attempt(group) or GatheredHeaders(group.new_host_group(), group.rank, group.world)


class SharedHeaders:
    """Headers in a file that all ranks have mapped: of each rank two slots, used in turns."""

    is_quick = True

    def __init__(self, file: FileIO, rank: int, world: int) -> None:
        """
        Args:
            file: of `SLOTS` × world slots. It belongs to this object from now on.
        """
        self._file, self._rank, self._world = file, rank, world
        self._memory = mmap.mmap(file.fileno(), SLOTS * world * SLOT_BYTES)
        self._number, self._mine, self._posted_s = 0, b"", 0.0
        # the kernel gives the lock up when this process ends; its forks do not hold it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    @classmethod
    def attempt(cls, group: WorldGroup) -> SharedHeaders | None:
        """None on all ranks where one of them cannot map the file of rank 0."""
        file = _new_file(group.world) if group.rank == 0 else None
        machines = group.gather([boot_id(), file.name if file is not None else ""])
        path, is_shared = machines[0][1], all(machine == machines[0][0] for machine, _ in machines)
        headers = None
        with suppress(OSError, ValueError):
            if path and is_shared:
                headers = cls(FileIO(path, "r+") if file is None else file, group.rank, group.world)
        outcomes = group.gather(headers is not None)
        if file is not None:
            Path(path).unlink(missing_ok=True)  # it lives on while it is mapped, and nobody else can open it
        if all(outcomes):
            return headers
        for opened in filter(None, (headers, file)):
            opened.close()
        return None

    def post(self, header: bytes) -> None:
        self._number += 1
        self._posted_s = time.monotonic()
        self.replace(header)

    def replace(self, header: bytes) -> None:
        assert len(header) <= MAX_BYTES
        self._mine = header
        head = HEAD.pack(self._number, len(header), zlib.crc32(header, self._number))
        start = self._start(self._rank)
        self._memory[start : start + HEAD.size + len(header)] = head + header

    def read(self, timeout_s: float) -> list[bytes]:
        headers: list[bytes] = []
        for rank in range(self._world):
            header = self._mine if rank == self._rank else self._seen(rank)
            headers.append(self._wait(rank, timeout_s) if header is None else header)
        return headers

    def close(self) -> None:
        """The others can read what was posted before, and then find that this rank is gone."""
        self._memory.close()
        self._file.close()

    def _start(self, rank: int) -> int:
        return (rank * SLOTS + self._number % SLOTS) * SLOT_BYTES

    def _seen(self, rank: int) -> bytes | None:
        """The header of that rank. None until all its bytes are visible here, whatever their order."""
        start = self._start(rank)
        number, length, checksum = HEAD.unpack_from(self._memory, start)
        if number != self._number or length > MAX_BYTES:
            return None
        header = self._memory[start + HEAD.size : start + HEAD.size + length]
        return header if zlib.crc32(header, number) == checksum else None

    def _wait(self, rank: int, timeout_s: float) -> bytes:
        look_s = begun_s = now_s = time.monotonic()
        sleep_s = MIN_SLEEP_S
        while True:
            if now_s - begun_s > SPIN_S:
                time.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, MAX_SLEEP_S)
            now_s = time.monotonic()
            is_late, is_gone = now_s - self._posted_s > timeout_s, False
            if now_s - look_s > LOOK_S:
                look_s, is_gone = now_s, self._is_gone(rank)
            header = self._seen(rank)  # after the questions: a rank may have posted its header and then have ended
            if header is not None:
                return header
            if is_gone:
                raise PeerLost(f"rank {rank} is gone, or has given its context up: its own output says why")
            if is_late:
                raise PeerLost(f"rank {rank} has not come within {timeout_s:g} s: its own output says why")

    def _is_gone(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


class GatheredHeaders:
    """Headers by a process group over gloo, which nothing else uses."""

    is_quick = False

    def __init__(self, torch_group: Any, rank: int, world: int) -> None:
        import torch

        self._torch_group, self._rank = torch_group, rank
        self._mine = torch.zeros(SLOT_BYTES, dtype=torch.uint8)
        self._all: list[torch.Tensor] = list(torch.zeros(world, SLOT_BYTES, dtype=torch.uint8).unbind())
        self._work: Any = None
        self._posted_s = 0.0

    def post(self, header: bytes) -> None:
        import torch.distributed as dist

        with as_peer_lost():
            if self._work is not None:
                self._work.wait()  # tensors of an exchange that is under way must not change
            row = self._mine.numpy()
            row[: HEAD.size + len(header)] = bytearray(HEAD.pack(0, len(header), 0) + header)
            self._posted_s = time.monotonic()
            self._work = dist.all_gather(self._all, self._mine, group=self._torch_group, async_op=True)

    def read(self, timeout_s: float) -> list[bytes]:
        left_s = max(timeout_s - (time.monotonic() - self._posted_s), LEAST_S)
        with as_peer_lost():
            self._work.wait(timedelta(seconds=left_s))
        return [_header(row.numpy().tobytes()) for row in self._all]

    def replace(self, header: bytes) -> None:
        """What has been sent stays: ranks that come later find that the connection has ended."""

    def close(self) -> None:
        """The process group ends with the group that made it."""


def _header(slot: bytes) -> bytes:
    return slot[HEAD.size : HEAD.size + HEAD.unpack_from(slot)[1]]


def _new_file(world: int) -> FileIO | None:
    """A file for the headers of so many ranks, full of zeros. None where there is no room for one."""
    folder = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else tempfile.gettempdir()
    with suppress(OSError):
        fd, path = tempfile.mkstemp(prefix="longca-headers-", dir=folder)
        os.close(fd)
        file = FileIO(path, "r+")
        try:
            os.posix_fallocate(
                file.fileno(), 0, SLOTS * world * SLOT_BYTES
            )  # a full disk would be a crash at the first write
        except OSError:
            file.close()
            Path(path).unlink()
        else:
            return file
    return None
