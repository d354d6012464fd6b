"""Messages between the runner and a worker: JSON lines over two pipes of their own, or over a socket.

Not over stdout, since kernels and compilers print there.
"""

import json
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from socket import socket
from typing import Any, Protocol

CHUNK_BYTES = 1 << 16
Message = dict[str, Any]


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Channel:
    """One end. Reads from one file descriptor and writes to another, and owns both."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self._partial = b""
        self._early: deque[Message] = deque()  # came with the one that `wait` was asked for

    @classmethod
    def over(cls, connection: socket) -> "Channel":
        """One end of a connection, which it owns from now on."""
        descriptor = connection.detach()
        os.set_blocking(descriptor, True)
        return cls(descriptor, os.dup(descriptor))

    def fileno(self) -> int:
        """What a selector waits for."""
        return self.reader

    def send(self, message: Message) -> None:
        """Raises EOFError where nobody reads any more."""
        content = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while content:
                content = content[os.write(self.writer, content):]
        except OSError:  # broken pipe, connection reset, host unreachable …
            raise EOFError from None

    def receive(self) -> list[Message]:
        """The messages that one read completes, perhaps none; waits for the read. Raises EOFError at the end."""
        if self._early:
            early, self._early = list(self._early), deque()
            return early
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except OSError:  # connection reset, or its other end is silent for too long
            raise EOFError from None
        if not chunk:
            raise EOFError
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, timeout_s: float) -> Message:
        """The next message. Raises TimeoutError where there is none by then, EOFError at the end."""
        deadline = time.monotonic() + timeout_s
        while not self._early:
            if not is_readable(self, deadline - time.monotonic()):
                raise TimeoutError(f"no message in {timeout_s:g} s")
            self._early.extend(self.receive())
        return self._early.popleft()

    def __iter__(self) -> Iterator[Message]:
        """Messages until the other end closes."""
        while True:
            try:
                yield from self.receive()
            except EOFError:
                return

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_readable(source: HasDescriptor, timeout_s: float = 0.0) -> bool:
    """Whether a read of it would not wait: there is something, or its end. Waits for that so long."""
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(source, select.POLLIN)
    return bool(poll.poll(1e3 * max(timeout_s, 0.0)))
