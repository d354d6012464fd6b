"""Texts that are damaged at random, and what is asked of whatever reads them."""

import time
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longca.core.errors import UserError
from tests.helpers.command import called
from tests.helpers.support import examples

MOST_SECONDS = 10  # of this process, for any of them

TOKENS = [
    b"[",
    b"]",
    b"{",
    b"}",
    b":",
    b"- ",
    b"? ",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!",
    b"!!int ",
    b"!!python/object:os.system",
    b"|",
    b"%",
    b"'",
    b'"',
    b"\\",
    b"#",
    b"\n",
    b"\n  ",
    b"\t",
    b",",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    b"\x1b[31m",
    b"\\ud800",
    b"nan",
    b".inf",
    b"-1",
    b"0",
    b"1e400",
    b"9" * 5000,
    b"[" * 2000,
    b"null",
    b"true",
    b"x" * 3000,
    b"../",
    b"512K",
    b"1:0",
    b"2024-99-99",
    b"title",
    b"grids",
]
"""what formats have a meaning for, and what they cannot hold"""


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """The text with up to five places cut out, doubled, moved or replaced."""
    text = sound
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(start + draw(st.integers(0, 40)), len(text))
        new = draw(st.sampled_from(TOKENS) | st.binary(max_size=3) | st.just(text[start:end] * 2))
        text = text[:start] + new + text[end:] if draw(st.integers(0, 20)) else text[:start] + new
    return text


def fuzz(sound: str, whole: int = 600) -> Callable[..., Any]:
    """A test that gets `text`, again and again damaged in another way."""

    def decorate(test: Callable[..., None]) -> Any:
        quiet = settings(examples(whole), suppress_health_check=list(HealthCheck))
        return quiet(given(text=damaged(sound.encode()))(test))

    return decorate


def told(*arguments: object, codes: tuple[int, ...] = (0, 2)) -> CompletedProcess[str]:
    """The output of the command, whose exit code must be one of the codes, soon, and one line where it is
    2."""
    start = time.process_time()
    done = called(
        [str(argument) for argument in arguments], {"LONGCA_DEVICE": "cpu", "CI": "1", "COLUMNS": "200"}
    )
    assert time.process_time() - start < MOST_SECONDS
    assert done.returncode in codes, done.stderr
    for line in done.stderr.splitlines():
        assert line.isprintable() and len(line) < 4000
    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        assert done.stderr.startswith("longca: ")
    return done


def usable(call: Callable[[], object]) -> bool:
    """True if it was not refused, in lines that a terminal can show."""
    try:
        call()
    except UserError as error:
        assert all(line.isprintable() for line in str(error).splitlines())
        return False
    return True
