"""Processes of a trial: found by a variable in their environment, which all that they start inherits; and
what each of them is."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "CHAOS_TRIAL"  # its value names the trial
KINDS = ("snakemake", "runner", "worker", "rank")
TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """A living process of a trial."""

    pid: int
    kind: str
    """one of KINDS; "" for a shell, a compiler or the like"""
    command: str


def processes(mark: str) -> list[Process]:
    """All living processes whose environment has the mark."""
    return list(_processes(f"{MARK}={mark}".encode()))


def _processes(entry: bytes) -> Iterator[Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            words = [
                word.decode(errors="replace")
                for word in (folder / "cmdline").read_bytes().split(b"\0")
                if word
            ]
        except OSError:
            continue  # it has ended, or is another user's
        if words:  # a zombie has none
            yield Process(int(folder.name), kind_of(words), " ".join(words))


def kind_of(words: list[str]) -> str:
    """The kind of a process by its command line."""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module == "longca.lab.bench.workers.worker":
        return "rank" if words[words.index("--world") + 1] != "1" else "worker"
    if module == "longca":
        return "runner" if "run" in words[words.index("-m") + 2 :][:1] else ""
    return "snakemake" if module == "snakemake" else ""


def wait_until_gone(mark: str, timeout_s: float) -> list[Process]:
    """The processes that are still there after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)
    return left


def send(process: Process, number: signal.Signals) -> bool:
    """False if it has ended before."""
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def end_all(mark: str) -> None:
    """Kill every process of a trial."""
    while left := processes(mark):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(TICK_SECONDS)
