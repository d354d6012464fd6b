"""First calls: a method of an external plug-in is first called in a fork of this process, which it may
crash."""

import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from longca.core.children.trial import MOST_PRINTED, NONE, VARIABLE
from longca.core.reading import CHUNK_BYTES, PLUGIN

TICK_SECONDS = 0.005
RETURNED = 71
ODD = 72
"""exit codes of a fork: the call returned or raised an Exception, which the same call here repeats; it raised
another BaseException"""


def with_first_call(function: Callable[..., Any], refuse: Callable[[str], Exception]) -> Callable[..., Any]:
    """The function with a first call in a fork of this process before the call here.

    There is no fork where it could do harm: with other threads, in a process that uses GPUs, in a rank or in
    a worker.

    Args:
        refuse: makes the exception of this call, and of all later ones, from the reason why the fork did not
            survive.
    """
    if os.environ.get(VARIABLE) == NONE or hasattr(function, "is_tried_first") or not hasattr(os, "fork"):
        return function
    reasons: list[str] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not reasons and _may_copy():
            reasons.append(_reason(lambda: function(*args, **kwargs)))
        if any(reasons):
            raise refuse(reasons[0])
        return function(*args, **kwargs)

    call.is_tried_first = True  # type: ignore[attr-defined]
    return call


def _may_copy() -> bool:
    torch: Any = sys.modules.get("torch")
    if torch is not None and (
        torch.cuda.is_initialized()
        or (torch.distributed.is_available() and torch.distributed.is_initialized())
    ):
        return False
    return threading.active_count() == 1


def _reason(call: Callable[[], object]) -> str:
    """The reason why a fork of this process does not survive the call; empty if it does."""
    seconds = PLUGIN.value()
    sys.stdout.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _call_in_copy(call, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    deadline = time.monotonic() + seconds
    ended = 0
    status = 0
    num_printed = 0
    poll = select.poll()  # for descriptors of any number
    poll.register(reader, select.POLLIN)
    try:
        while not ended and time.monotonic() < deadline and num_printed <= MOST_PRINTED:
            poll.poll(1e3 * TICK_SECONDS)
            ended, status = os.waitpid(pid, os.WNOHANG)
            with suppress(BlockingIOError):  # all that was printed so far is read
                while num_printed <= MOST_PRINTED and (content := os.read(reader, CHUNK_BYTES)):
                    num_printed += len(content)
                if not ended:  # its output has ended before it
                    time.sleep(TICK_SECONDS)
    finally:
        os.close(reader)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if num_printed > MOST_PRINTED:
        return f"prints more than {MOST_PRINTED >> 20} MiB"
    if not ended:
        return f"is not done after {seconds} s; {PLUGIN.todo}"
    code = os.waitstatus_to_exitcode(status)
    if code in (RETURNED, ODD):
        return "raises what is no Exception" if code == ODD else ""
    return (
        f"ends the process with exit code {code}"
        if code >= 0
        else f"has the process killed by signal {-code}"
    )


def _call_in_copy(call: Callable[[], object], writer: int) -> None:
    """Make the call with its output to the descriptor `writer`, and end this process."""
    code = RETURNED
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(writer, stream)
        call()
    except Exception:
        pass
    except BaseException:
        code = ODD
    finally:
        os._exit(code)
