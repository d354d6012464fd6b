"""Channels: messages between the runner and a worker or an agent, as JSON lines over two pipes or over a socket.

They do not use stdout, since kernels and compilers print there.
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
    """One end of a channel. It reads from one file descriptor, writes to another and owns both."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self._partial = b""
        self._early: deque[Message] = deque()  # arrived together with the message that `wait` returned

    @classmethod
    def over(cls, connection: socket) -> "Channel":
        """A channel over a connected socket, which it owns from now on."""
        descriptor = connection.detach()
        os.set_blocking(descriptor, True)
        return cls(descriptor, os.dup(descriptor))

    def fileno(self) -> int:
        """The descriptor that a selector waits for."""
        return self.reader

    def send(self, message: Message) -> None:
        """Send one message. Raises EOFError if the other end is closed."""
        content = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while content:
                content = content[os.write(self.writer, content):]
        except OSError:  # broken pipe, connection reset, host unreachable …
            raise EOFError from None

    def receive(self) -> list[Message]:
        """The messages that one read completes, perhaps none. Blocks until there is something to read. Raises EOFError at the end."""
        if self._early:
            early, self._early = list(self._early), deque()
            return early
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except OSError:  # connection reset, or silent for longer than KEEPALIVE allows
            raise EOFError from None
        if not chunk:
            raise EOFError
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, timeout_s: float) -> Message:
        """The next message. Raises TimeoutError if none comes in time, and EOFError at the end."""
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
    """True as soon as a read would not block (there is data, or the end); False if that takes longer than `timeout_s`."""
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(source, select.POLLIN)
    return bool(poll.poll(1e3 * max(timeout_s, 0.0)))
