"""The output of a worker process: a pipe that a thread of the parent copies into a log of limited size.

A full log continues in a new file and keeps one previous file, so its end is always available. Only the end
is read back.
"""

import fcntl
import os
import select
import struct
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

from longca.core.reading import LOG
from longca.core.secrets import bytes_without_secrets, without_secrets

BEFORE = ".before"  # suffix of the previous file of a log
CHUNK_BYTES = 1 << 16
LEAST_BYTES = 1 << 20  # minimum size of a log, for any size of the run's other logs
PIPE_BYTES = 256 << 10  # capacity of the pipe while the parent is busy
MOST_READ = 256 << 10  # bytes read from a log's end
MOST_OF_LINE = 64 << 10  # bytes of a line without an end that are held back
DRAIN_SECONDS = 1.0  # to collect the output so far of a process that keeps printing


class Output:
    """The output of one process since its start. `writer` is its stdout and stderr; the parent closes it
    after the start."""

    def __init__(self, log: Path) -> None:
        """Raises OSError: the log cannot be written."""
        log.parent.mkdir(parents=True, exist_ok=True)
        # of each of two files
        self._most = max(LOG.num_bytes() - sum(map(_size, log.parent.iterdir())), LEAST_BYTES) // 2
        self._log = log
        self._before = log.with_name(log.name + BEFORE)
        self._file = _opened(log)
        self._size = os.fstat(self._file).st_size
        self._partial = b""  # a line whose end has not come: a secret may be in two parts of the output
        self._num_printed = self._mark = 0  # bytes since the start: all, and those up to the last headline
        self._reader, self.writer = os.pipe()
        self._wake, self._end = os.pipe()
        os.set_blocking(self._reader, False)
        with suppress(OSError, AttributeError):  # not available on every system, or beyond a user's quota
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._follow, daemon=True, name=f"output {log.name}")
        self._thread.start()

    def begin(self, title: str) -> None:
        """Write a headline; `tail` shows what follows it."""
        self._drain()
        with self._lock:
            self._write(f"== {without_secrets(title)}\n".encode())
            self._mark = self._num_printed

    def tail(self) -> str:
        """The end of the output since `begin`."""
        self._drain()
        with self._lock:
            count = min(self._num_printed - self._mark, MOST_READ)
            content = _end_of(self._log, count)
            if len(content) < count:
                content = _end_of(self._before, count - len(content)) + content
        return content.decode(errors="replace")

    def close(self) -> None:
        """Write the rest of the pipe, and close it: surviving processes cannot print any more."""
        if self._is_closed:
            return
        self._drain()
        self._is_closed = True
        os.write(self._end, b".")  # closing it alone would not wake the thread where a fork has a copy of it
        self._thread.join()
        for file in (self._reader, self._wake, self._end, self._file):
            os.close(file)

    def _follow(self) -> None:
        poll = select.poll()
        for file in (self._reader, self._wake):
            poll.register(file, select.POLLIN)
        while self._wake not in dict(poll.poll()):
            if not self._take():
                poll.unregister(self._reader)  # end of the pipe: only `close` is still awaited

    def _drain(self) -> None:
        """Write the current contents of the pipe."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self._is_closed and _bytes_in(self._reader) and time.monotonic() < deadline:
            self._take()
        with self._lock:
            self._write(bytes_without_secrets(self._partial))
            self._partial = b""

    def _take(self) -> bool:
        """Write the next part of the pipe, if any. Returns False at the end."""
        with self._lock:
            try:
                content = os.read(self._reader, CHUNK_BYTES)
            except BlockingIOError:  # another thread has taken it
                return True
            whole, end, self._partial = (self._partial + content).rpartition(b"\n")
            if not content or len(self._partial) > MOST_OF_LINE:
                end = end + self._partial
                self._partial = b""
            self._write(bytes_without_secrets(whole + end))
        return bool(content)

    def _write(self, content: bytes) -> None:
        """Errors are ignored: if the disk is full, the store reports it."""
        if not content:
            return
        self._num_printed += len(content)
        with suppress(OSError):
            if self._size + len(content) > self._most:
                self._log.replace(self._before)
                full = self._file
                self._file = _opened(self._log)
                self._size = 0
                os.close(full)
            self._size += os.write(self._file, content)


def _opened(log: Path) -> int:
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:  # another process has renamed it
        return 0


def _bytes_in(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def _end_of(path: Path, count: int) -> bytes:
    """The last `count` bytes of a file; fewer if it is shorter or missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - count, 0))
            return file.read(count)
    except OSError:
        return b""
