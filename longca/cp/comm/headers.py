"""Headers: a short text of each rank for every call, which all ranks read on the host.

Ranks of one machine write headers into a small file that all have mapped. That costs a few microseconds and
no system call, so each call of an attention layer on a GPU can have a header. Other ranks use a process
group of their own over gloo.

A header has a fixed place and size, so ranks that call different things can still read each other's
headers. A rank may post several headers before it reads those of the others.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import time
import zlib
from collections import deque
from contextlib import suppress
from datetime import timedelta
from io import FileIO
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from longca.cp.comm.machine import open_on_all_ranks
from longca.cp.comm.process_group import PeerLost, as_peer_lost

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.process_group import WorldGroup

MAX_BYTES = 4080
"""of a header, in UTF-8"""
MAX_UNREAD = 32
"""headers that a rank may have posted without having read those of the others"""
SLOT_BYTES = 4096
SLOTS = 2 * MAX_UNREAD  # who posts n has read n - 32 of all ranks, which have then read n - 64: n replaces it
HEAD = struct.Struct("<QII")  # number of the header, its length, checksum
ENDING = 1 << 63  # in place of the number: the text says why that rank goes no further
SPIN_S = 200e-6  # ranks of one machine mostly come within so long; a sleep takes as long at least
MIN_SLEEP_S = 20e-6
MAX_SLEEP_S = 1e-3
LEAST_S = 1e-3
LOOK_S = 0.1
"""time between two looks whether a rank that is waited for still lives"""


class Headers(Protocol):
    """The exchange of headers among the ranks of a group.

    The n-th `post` of a rank belongs to the n-th of each other rank. They are read in that order.
    """

    @property
    def num_unread(self) -> int:
        """Headers that this rank has posted without having read those of the others: at most `MAX_UNREAD`."""
        ...

    def post(self, header: bytes) -> None:
        """Shows this rank's next header to the others, without waiting."""
        ...

    def poll(self) -> list[bytes] | None:
        """The headers of all ranks that belong to the oldest unread one, by rank. None unless all are there.

        Raises:
            PeerLost: they are not all there, and a rank has said that it goes no further.
        """
        ...

    def read(self, timeout_s: float) -> list[bytes]:
        """Waits for what `poll` returns.

        Raises:
            PeerLost: a rank has posted none within so many seconds of this rank's, or is gone.
        """
        ...

    def check(self, timeout_s: float) -> None:
        """Raises PeerLost where `read` would, without waiting."""
        ...

    def end(self, reason: str) -> None:
        """Tells the others that this rank goes no further. Nothing can be posted or read afterwards."""
        ...

    def close(self) -> None: ...


def open_headers(group: WorldGroup) -> Headers:
    """Headers by shared memory where all ranks can map one file, else by gloo. All ranks call it together."""
    return SharedHeaders.attempt(group) or GatheredHeaders(group.new_host_group(), group.rank, group.world)


class _Posted(NamedTuple):
    """A header of this rank, as it lies in its slot."""

    number: int
    slot: bytes
    time_s: float


class SharedHeaders:
    """Headers in a file that all ranks have mapped.

    Its first bytes say which ranks go no further. Then each rank has a slot for the reason, and `SLOTS` for
    headers.
    """

    def __init__(self, file: FileIO, rank: int, world: int) -> None:
        """
        Args:
            file: of `file_bytes(world)`. It belongs to this object from now on.
        """
        self._file = file
        self._rank = rank
        self._world = world
        self._memory = mmap.mmap(file.fileno(), file_bytes(world))
        self._peers = [peer for peer in range(world) if peer != rank]
        self._starts = [_flag_bytes(world) + peer * (1 + SLOTS) * SLOT_BYTES for peer in range(world)]
        self._no_flags = bytes(world)
        self._number = 0
        self._unread: deque[_Posted] = deque()
        # the kernel gives the lock up when this process ends; its forks do not hold it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    @classmethod
    def attempt(cls, group: WorldGroup) -> SharedHeaders | None:
        """None on all ranks where one of them cannot map the file of rank 0."""
        headers, _ = open_on_all_ranks(
            group, file_bytes(group.world), "headers", lambda file: cls(file, group.rank, group.world)
        )
        return headers

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    def post(self, header: bytes) -> None:
        assert len(self._unread) < MAX_UNREAD
        self._number = number = self._number + 1
        slot = self._write(self._start(self._rank, number), number, header)
        self._unread.append(_Posted(number, slot, time.monotonic()))

    def poll(self) -> list[bytes] | None:
        # flags first: headers that came before a flag are then visible, and say more
        has_flags = self._memory[: self._world] != self._no_flags
        headers = self._oldest() if self._unread else None
        if headers is not None:
            self._unread.popleft()
        elif has_flags and (reason := self._ending()) is not None:
            raise PeerLost(reason)
        return headers

    def read(self, timeout_s: float) -> list[bytes]:
        look_s = begun_s = now_s = time.monotonic()
        sleep_s = MIN_SLEEP_S
        while (headers := self.poll()) is None:
            if now_s - begun_s > SPIN_S:
                time.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, MAX_SLEEP_S)
            now_s = time.monotonic()
            if now_s - look_s > LOOK_S or now_s - self._unread[0].time_s > timeout_s:
                look_s = now_s
                self.check(timeout_s)
        return headers

    def check(self, timeout_s: float) -> None:
        if not self._unread:
            return
        number, _, time_s = self._unread[0]
        is_late = time.monotonic() - time_s > timeout_s
        gone = [rank for rank in self._peers if self._seen(rank, number) is None and self._is_gone(rank)]
        # after the questions: a rank may have posted its header and then have ended
        missing = [rank for rank in self._peers if self._seen(rank, number) is None]
        for rank in missing:
            if rank in gone:
                raise PeerLost(f"rank {rank} is gone, or has given its context up: its own output says why")
        if missing and is_late:
            raise PeerLost(f"rank {missing[0]} has not come within {timeout_s:g} s: its own output says why")

    def end(self, reason: str) -> None:
        ending = reason.encode("utf-8", "backslashreplace")[:MAX_BYTES]
        self._write(self._starts[self._rank], ENDING, ending)
        self._memory[self._rank : self._rank + 1] = b"\1"

    def close(self) -> None:
        """The others can read what was posted before, and then find that this rank is gone."""
        self._memory.close()
        self._file.close()

    def _start(self, rank: int, number: int) -> int:
        return self._starts[rank] + (1 + number % SLOTS) * SLOT_BYTES

    def _write(self, start: int, number: int, header: bytes) -> bytes:
        """Writes a slot, and returns its bytes."""
        assert len(header) <= MAX_BYTES
        slot = HEAD.pack(number, len(header), zlib.crc32(header, number & 0xFFFFFFFF)) + header
        self._memory[start : start + len(slot)] = slot
        return slot

    def _oldest(self) -> list[bytes] | None:
        number, slot, _ = self._unread[0]
        headers = [slot[HEAD.size :]] * self._world
        for rank in self._peers:
            start = self._start(rank, number)
            if self._memory[start : start + len(slot)] != slot:  # mostly all ranks have the same header
                header = self._seen(rank, number)
                if header is None:
                    return None
                headers[rank] = header
        return headers

    def _seen(self, rank: int, number: int) -> bytes | None:
        return self._slot(self._start(rank, number), number)

    def _slot(self, start: int, number: int) -> bytes | None:
        """The header of that number. None until all its bytes are visible here, whatever their order."""
        found, length, checksum = HEAD.unpack_from(self._memory, start)
        if found != number or length > MAX_BYTES:
            return None
        header = self._memory[start + HEAD.size : start + HEAD.size + length]
        return header if zlib.crc32(header, number & 0xFFFFFFFF) == checksum else None

    def _ending(self) -> str | None:
        """The reason of the first rank that goes no further; None until it is visible."""
        for rank in self._peers:
            if self._memory[rank] and (reason := self._slot(self._starts[rank], ENDING)) is not None:
                return _cannot_go_on(rank, reason)
        return None

    def _is_gone(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


class _Exchange(NamedTuple):
    """An exchange under way: its tensors must neither change nor be freed."""

    mine: torch.Tensor
    of_ranks: list[torch.Tensor]
    work: Any
    time_s: float


class GatheredHeaders:
    """Headers by a process group over gloo, which nothing else uses."""

    def __init__(self, torch_group: Any, rank: int, world: int) -> None:
        self._torch_group = torch_group
        self._rank = rank
        self._world = world
        self._unread: deque[_Exchange] = deque()

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    def post(self, header: bytes) -> None:
        assert len(self._unread) < MAX_UNREAD
        self._send(header, 0)

    def poll(self) -> list[bytes] | None:
        return self._take() if self._unread and self._unread[0].work.is_completed() else None

    def read(self, timeout_s: float) -> list[bytes]:
        left_s = timeout_s - (time.monotonic() - self._unread[0].time_s)
        with as_peer_lost():
            self._unread[0].work.wait(timedelta(seconds=max(left_s, LEAST_S)))
        return self._take()

    def check(self, timeout_s: float) -> None:
        if self._unread and time.monotonic() - self._unread[0].time_s > timeout_s:
            self.read(0.0)

    def end(self, reason: str) -> None:
        with suppress(PeerLost):
            self._send(reason.encode("utf-8", "backslashreplace")[:MAX_BYTES], ENDING)

    def close(self) -> None:
        """The process group ends with the group that made it."""

    def _send(self, header: bytes, number: int) -> None:
        import torch
        import torch.distributed as dist

        mine = torch.zeros(SLOT_BYTES, dtype=torch.uint8)
        of_ranks = list(torch.empty(self._world, SLOT_BYTES, dtype=torch.uint8).unbind())
        mine.numpy()[: HEAD.size + len(header)] = bytearray(HEAD.pack(number, len(header), 0) + header)
        with as_peer_lost():
            work = dist.all_gather(of_ranks, mine, group=self._torch_group, async_op=True)
        self._unread.append(_Exchange(mine, of_ranks, work, time.monotonic()))

    def _take(self) -> list[bytes]:
        with as_peer_lost():
            self._unread[0].work.wait()
        headers = []
        for rank, row in enumerate(self._unread.popleft().of_ranks):
            slot = row.numpy().tobytes()
            number, length, _ = HEAD.unpack_from(slot)
            header = slot[HEAD.size : HEAD.size + length]
            if number == ENDING and rank != self._rank:
                raise PeerLost(_cannot_go_on(rank, header))
            headers.append(header)
        return headers


def _cannot_go_on(rank: int, reason: bytes) -> str:
    return f"rank {rank} cannot go on: {reason.decode(errors='replace')}"


def file_bytes(world: int) -> int:
    """Size of the file of `SharedHeaders`."""
    return _flag_bytes(world) + world * (1 + SLOTS) * SLOT_BYTES


def _flag_bytes(world: int) -> int:
    """Size of its first part, a byte for each rank."""
    return -(-world // SLOT_BYTES) * SLOT_BYTES
