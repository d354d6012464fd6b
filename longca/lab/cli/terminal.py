"""Output for people: whatever records and names hold, it moves no cursor and turns no direction of a
terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, cast

from longca.core import escaped

_NO_ASCII = re.compile(r"[^\x00-\x7f]")


class NamedStream:
    """A text stream whose OSErrors get its name as that of their file; all else is that of the stream
    below."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.below = stream
        self.title = name

    def write(self, text: str) -> int:
        with self._named_errors():
            self.below.write(text)
        return len(text)

    def flush(self) -> None:
        with self._named_errors():
            self.below.flush()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.title) from None

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class EscapingStream(NamedStream):
    """The same, which writes control characters as escapes."""

    def write(self, text: str) -> int:
        super().write(escaped(text))
        return len(text)


class PatientStream:
    """A text stream whose owner goes on where its disk is full or broken: what cannot be written is left out.

    A reader that has left (`head`) still ends the command.
    """

    def __init__(self, stream: TextIO) -> None:
        self.below = stream
        self.error: OSError | None = None
        """the first error; None if all was written"""

    def write(self, text: str) -> int:
        with self._patience():
            self.below.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._patience():
            self.below.flush()

    @contextmanager
    def _patience(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = self.error or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def open_closed_streams() -> list[str]:
    """Connect the standard streams that this process was started without to the null device, since a file
    that is opened later would get their numbers, and whatever is printed. Their names."""
    closed = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the least number that is free, which is this one
            closed.append(name)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    return closed


def say_error(error: object) -> None:
    """Print the line of an error; where standard error is full or broken, the exit code says it alone."""
    try:
        print(f"longca: {error}", file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Standard output and standard error write control characters as escapes, whatever they come from.

    Raises OSError at the end if the rest of the output cannot be written.
    """
    output = EscapingStream(sys.stdout, "standard output")
    errors = EscapingStream(sys.stderr, "standard error")
    with redirect_stdout(cast("TextIO", output)), redirect_stderr(cast("TextIO", errors)):
        try:
            yield
        finally:
            _flush(sys.stdout)


@contextmanager
def patient_output() -> Iterator[None]:
    """A full disk under standard output or standard error ends nothing in this block. At its end, the other
    one of them says what is missing."""
    streams = {"standard output": PatientStream(sys.stdout), "standard error": PatientStream(sys.stderr)}
    output, errors = streams.values()
    with redirect_stdout(cast("TextIO", output)), redirect_stderr(cast("TextIO", errors)):
        try:
            yield
        finally:
            for (name, stream), other in zip(streams.items(), (errors, output), strict=True):
                stream.flush()
                if stream.error is not None:
                    why = stream.error.strerror or str(stream.error)
                    print(
                        f"longca: Some of {name} is missing: {why}. Nothing that was measured is lost",
                        file=cast("TextIO", other),
                    )
            for stream in streams.values():
                stream.flush()
                if stream.error is not None:
                    _give_up(stream.below)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """The block ends without a message where the reader of standard output (`head`, `less`) has left."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
        sys.stderr.close()  # it may lead to the same reader


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _give_up(stream)
        raise


def _give_up(stream: TextIO) -> None:
    """Let the interpreter's last flush of a stream succeed, which otherwise prints a traceback and changes
    the exit code."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def styled_output() -> TextIO:
    """Standard output for who styles text by escapes of its own; what it is given must be escaped before."""
    return _below(sys.stdout)


def styled_errors() -> TextIO:
    """Standard error, likewise."""
    return _below(sys.stderr)


def _below(stream: TextIO) -> TextIO:
    return (
        cast("TextIO", NamedStream(stream.below, stream.title))
        if isinstance(stream, EscapingStream)
        else stream
    )


def escaped_json(text: str) -> str:
    """The same JSON, in which characters that a terminal obeys are written as JSON escapes them."""
    return text if text.isascii() else _NO_ASCII.sub(_as_json, text)


def _as_json(match: re.Match[str]) -> str:
    character = match[0]
    if escaped(character) == character:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))
