"""Channels: messages between the runner and a worker or an agent, as JSON lines over two pipes or over a
socket.

They do not use stdout, since kernels and compilers print there.
"""

import fcntl
import json
import os
import select
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from socket import socket
from typing import Any, Protocol

from longca.core.reading import JsonError, read_json

CHUNK_BYTES = 1 << 16
MOST_BYTES = 64 << 20  # of one message; a record of 8 MiB is the largest that can be stored
# of what arrived instead of a message
SHOWN_BYTES = 60
SHOWN_CHARS = 120
# the least number of a descriptor that code which writes to a wrong one by mistake does not meet
OUT_OF_REACH = 200
Message = dict[str, Any]


class BrokenChannel(EOFError):
    """Received data is not a message, so the channel is unusable."""


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Channel:
    """One end of a channel. It reads from one file descriptor, writes to another and owns both."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self._partial: list[bytes] = []  # the beginning of an incomplete message
        self._early: deque[Message] = deque()  # messages already read from the pipe but not yet returned

    @classmethod
    def over(cls, connection: socket) -> "Channel":
        """A channel over a connected socket, which it owns from now on."""
        descriptor = connection.detach()
        os.set_blocking(descriptor, True)
        return cls(descriptor, os.dup(descriptor))

    @classmethod
    def of_worker(cls, reader: int, writer: int) -> "Channel":
        """The channel of a worker process over descriptors that it has inherited.

        They get large numbers, and no other process has them: neither a program that this process starts, nor
        a copy of it, which would go on with its work and answer, too.
        """
        numbers = {old: out_of_reach(old) for old in {reader, writer}}
        channel = cls(numbers[reader], numbers[writer])
        os.register_at_fork(after_in_child=channel._leave)
        return channel

    def fileno(self) -> int:
        """The descriptor that a selector waits for."""
        return self.reader

    def send(self, message: Message) -> None:
        """Send one message. Raises EOFError if the other end is closed."""
        content = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while content:
                content = content[os.write(self.writer, content) :]
        except OSError:  # broken pipe, connection reset, host unreachable …
            raise EOFError from None

    def receive(self) -> list[Message]:
        """The messages that one read completes, perhaps none. Blocks until there is something to read.

        Raises:
            EOFError: at the end. BrokenChannel: by something that is no message.
        """
        if self._early:
            early = list(self._early)
            self._early = deque()
            return early
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except OSError:  # connection reset, or silent for longer than KEEPALIVE allows
            raise EOFError from None
        if not chunk:
            raise EOFError
        *ends, rest = chunk.split(b"\n")
        messages = []
        for end in ends:
            messages.append(_message(b"".join((*self._partial, end))))
            self._partial.clear()
        self._partial += [rest] if rest else []
        if len(self._partial) > MOST_BYTES // CHUNK_BYTES and sum(map(len, self._partial)) > MOST_BYTES:
            raise BrokenChannel(f"a message of more than {MOST_BYTES >> 20} MiB")
        return messages

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

    def _leave(self) -> None:
        for number in {self.reader, self.writer}:
            with suppress(OSError):
                os.close(number)
        self.reader = self.writer = -1

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def out_of_reach(file: int) -> int:
    """Another descriptor of an open file, with a large number, which no program inherits. The given one is
    closed."""
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
    finally:
        os.close(file)


def _message(line: bytes) -> Message:
    try:
        message = read_json(line)
    except JsonError:
        message = None
    if not isinstance(message, dict):
        shown = line[:SHOWN_BYTES].decode(errors="replace") + ("…" if len(line) > SHOWN_BYTES else "")
        raise BrokenChannel(f"'{shown}'")
    return message


def is_readable(source: HasDescriptor, timeout_s: float = 0.0) -> bool:
    """True as soon as a read would not block (there is data, or the end); False if that takes longer than
    `timeout_s`."""
    poll = select.poll()  # unlike `select`, for any number of open files
    poll.register(source, select.POLLIN)
    return bool(poll.poll(1e3 * max(timeout_s, 0.0)))


def check_answer(message: Message, keys: Collection[str]) -> None:
    """Raise BrokenChannel for a message that has none of these keys (any has, where there are none), or no
    result where it should be."""
    parts = [message.get(name) for name in ("result", "uses")] if "result" in message else []
    if (keys and message.keys().isdisjoint(keys)) or not all(isinstance(part, dict) for part in parts):
        raise BrokenChannel(f"a message of {', '.join(map(repr, message)) or 'nothing'}"[:SHOWN_CHARS])
