"""Independent items of work, shared out among forks of this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, TypeVar

from longca.core.children.processes import die_with

T = TypeVar("T")
ITEM = struct.Struct("=I")
PIPE_BYTES = 1 << 16  # what a pipe of Linux holds without a reader
MOST_FORKS = 4
"""each may need as much memory as its items do, beside what it shares with this process"""


def in_forks(
    work: Callable[[int], T],
    num_items: int,
    *,
    are_worth_it: bool = True,
    tell: Callable[[int], object] = lambda num_done: None,
) -> list[T]:
    """The results of all items, in their order. Each fork takes the next item once it has done one.

    Everything is done here without a second core, without a second item, on other systems than Linux, and in
    a process with threads, of which a fork would have none. So is what forks leave: an item that raises, and
    those of a fork that is killed.

    Args:
        work: from the number of an item to its result, which is pickled. It changes nothing here.
        are_worth_it: False for so little work that forks would cost more than they save.
        tell: is told after each item how many are done.

    Raises:
        Exception: what `work` raises.
    """
    num_forks = min(_num_cores(), num_items, MOST_FORKS) if are_worth_it and _may_fork(num_items) else 1
    results = _shared_out(work, num_items, num_forks, tell) if num_forks > 1 else {}
    for item in range(num_items):
        if item not in results:
            results[item] = work(item)
            tell(len(results))
    return [results[item] for item in range(num_items)]


@contextmanager
def in_background(work: Callable[[], T], *, is_worth_it: bool = True) -> Iterator[Callable[[], T]]:
    """A context in which a fork does the work. What it gives waits for the result; it does the work itself
    where there is no fork, as of `in_forks`, or the fork failed. The fork does not outlive the context.

    Args:
        work: its result is pickled. It changes nothing here.
    """
    if not (is_worth_it and _num_cores() > 1 and _may_fork(1)):
        yield work
        return
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, writer, os.getpid()), daemon=True)
    process.start()
    writer.close()

    def result() -> T:
        try:
            (made,) = reader.recv()
        except EOFError:
            made = work()
        return made

    try:
        yield result
    finally:
        reader.close()
        process.kill()  # it has nothing left to do, or its result is not wanted
        process.join()


def _may_fork(num_items: int) -> bool:
    return (
        sys.platform == "linux"  # Apple's libraries forbid it
        and threading.active_count() == 1
        and multiprocessing.parent_process() is None
        and num_items * ITEM.size <= PIPE_BYTES
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _shared_out(
    work: Callable[[int], T], num_items: int, num_forks: int, tell: Callable[[int], object]
) -> dict[int, T]:
    """The results by item, as far as forks had any."""
    context = multiprocessing.get_context("fork")
    items, items_in = os.pipe()
    os.write(items_in, b"".join(map(ITEM.pack, range(num_items))))
    os.close(items_in)
    readers: list[Any] = []
    processes = []
    results: dict[int, T] = {}
    try:
        for _ in range(num_forks):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(work, items, writer, os.getpid()), daemon=True)
            processes.append(process)
            readers.append(reader)
            process.start()
            writer.close()  # so that no other fork has it
        while readers:
            ready: list[Any] = wait(readers)
            for reader in ready:
                try:
                    item, result = reader.recv()
                except EOFError:
                    readers.remove(reader)
                else:
                    results[item] = result
                    tell(len(results))
    finally:
        os.close(items)
        for process in [process for process in processes if process.pid is not None]:
            if readers:  # this process is interrupted
                process.kill()
            process.join()
    return results


def _become_fork(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its forks
    die_with(parent)


def _work(work: Callable[[], Any], result: Any, parent: int) -> None:
    _become_fork(parent)
    with suppress(Exception):  # the other process does it again, and raises it
        result.send((work(),))


def _serve(work: Callable[[int], Any], items: int, results: Any, parent: int) -> None:
    _become_fork(parent)
    while number := os.read(items, ITEM.size):  # all of it or nothing: no fork reads half an item
        (item,) = ITEM.unpack(number)
        with suppress(Exception):  # the other process does it again, and raises it
            results.send((item, work(item)))
