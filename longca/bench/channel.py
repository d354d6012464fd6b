"""Messages between the runner and a worker: JSON lines over two pipes of their own.

Not over stdout, since kernels and compilers print there.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

CHUNK_BYTES = 1 << 16
Message = dict[str, Any]


class Channel:
    """One end. Reads from one file descriptor and writes to another, and owns both."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self._partial = b""

    def fileno(self) -> int:
        """What a selector waits for."""
        return self.reader

    def send(self, message: Message) -> None:
        """Raises EOFError where nobody reads any more."""
        content = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while content:
                content = content[os.write(self.writer, content):]
        except BrokenPipeError:
            raise EOFError from None

    def receive(self) -> list[Message]:
        """The messages that one read completes, perhaps none; waits for the read. Raises EOFError at the end."""
        chunk = os.read(self.reader, CHUNK_BYTES)
        if not chunk:
            raise EOFError
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

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
