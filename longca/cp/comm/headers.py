"""Headers: a short text of each rank for every call, which all ranks read on the host.

Ranks of one machine write headers into a small memory-mapped file. This takes a few microseconds and no
system call, so each call of an attention layer on a GPU can have a header. Other ranks use a separate process
group over gloo.

A header has a fixed location and size, so ranks can read each other's headers even if their calls differ.
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
# a rank writes header n + 2 after it has read all headers n + 1, whose ranks have read all headers n
SLOTS = 2
HEAD = struct.Struct("<QII")  # number of the header, its length, checksum
SHARED_MEMORY = "/dev/shm"
SPIN_S = 200e-6  # ranks of one machine usually arrive within this time, and a sleep takes at least as long
MIN_SLEEP_S, MAX_SLEEP_S = 20e-6, 1e-3
LEAST_S = 1e-3
LOOK_S = 0.1
"""interval of checks whether an awaited rank is still alive"""


class Headers(Protocol):
    """The exchange of headers among the ranks of a group.

    The n-th `post` of each rank belongs together.
    """

    is_quick: bool
    """True if a header is visible within microseconds"""

    def post(self, header: bytes) -> None:
        """Publishes this rank's next header without waiting. The previous one must have been read."""
        ...

    def read(self, timeout_s: float) -> list[bytes]:
        """The headers of all ranks for the last post, by rank.

        Raises:
            PeerLost: a rank failed, or did not post within this number of seconds.
        """
        ...

    def replace(self, header: bytes) -> None:
        """Replaces the last header for ranks that have not read it yet."""
        ...

    def close(self) -> None: ...


def open_headers(group: WorldGroup) -> Headers:
    """Headers in shared memory if all ranks can map one file, else by gloo. A collective call."""
    return SharedHeaders.attempt(group) or GatheredHeaders(group.new_host_group(), group.rank, group.world)


class SharedHeaders:
    """Headers in a memory-mapped file with two alternating slots for each rank."""

    is_quick = True

    def __init__(self, file: FileIO, rank: int, world: int) -> None:
        """
        Args:
            file: a file of `SLOTS` × world slots, owned by this object from now on.
        """
        self._file, self._rank, self._world = file, rank, world
        self._memory = mmap.mmap(file.fileno(), SLOTS * world * SLOT_BYTES)
        self._number, self._mine, self._posted_s = 0, b"", 0.0
        # the kernel releases the lock when this process ends; forks do not hold it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    @classmethod
    def attempt(cls, group: WorldGroup) -> SharedHeaders | None:
        """None on all ranks if one of them cannot map the file of rank 0."""
        file = _new_file(group.world) if group.rank == 0 else None
        machines = group.gather([boot_id(), file.name if file is not None else ""])
        path, is_shared = machines[0][1], all(machine == machines[0][0] for machine, _ in machines)
        headers = None
        with suppress(OSError, ValueError):
            if path and is_shared:
                headers = cls(FileIO(path, "r+") if file is None else file, group.rank, group.world)
        outcomes = group.gather(headers is not None)
        if file is not None:
            # it exists while it is mapped, and no other process can open it
            Path(path).unlink(missing_ok=True)
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
        """Other ranks can still read earlier posts, and then detect the end of this rank."""
        self._memory.close()
        self._file.close()

    def _start(self, rank: int) -> int:
        return (rank * SLOTS + self._number % SLOTS) * SLOT_BYTES

    def _seen(self, rank: int) -> bytes | None:
        """The header of that rank. None until all its bytes are visible, in any order."""
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
            # after the liveness checks: a rank may have posted its header before it ended
            header = self._seen(rank)
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
    """Headers by a separate process group over gloo."""

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
                self._work.wait()  # tensors of an exchange in flight must not change
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
        """Sent headers stay readable; later ranks detect the closed connection."""

    def close(self) -> None:
        """The process group ends with its parent group."""


def _header(slot: bytes) -> bytes:
    return slot[HEAD.size : HEAD.size + HEAD.unpack_from(slot)[1]]


def _new_file(world: int) -> FileIO | None:
    """A zero-filled file for the headers of this many ranks. None if there is no space."""
    folder = SHARED_MEMORY if Path(SHARED_MEMORY).is_dir() else tempfile.gettempdir()
    with suppress(OSError):
        fd, path = tempfile.mkstemp(prefix="longca-headers-", dir=folder)
        os.close(fd)
        file = FileIO(path, "r+")
        try:
            os.posix_fallocate(
                file.fileno(), 0, SLOTS * world * SLOT_BYTES
            )  # a full disk would crash the first write
        except OSError:
            file.close()
            Path(path).unlink()
        else:
            return file
    return None
