"""The judge's process: it judges what workers send, and tells the runner. No code of a kernel runs here.

The runner starts it once a run (`JudgeProcess`), names each cell to it, with a socket to the worker of rank
0, and asks for the judgement in the end. A worker's own judgement of its result is ignored.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.core.children.template import Template
from longca.lab.bench.judge.judgement import Judgement
from longca.lab.bench.workers.channel import Channel, Message, out_of_reach
from longca.lab.bench.workers.process import WorkerProcess, obey_parent, threads_per_rank
from longca.lab.studies import Cell, Measure

START_SECONDS = 300.0  # importing torch from a cold network disk takes minutes
VERDICT_SECONDS = 60.0  # after the worker has had its answer there is little left to do
TICK_SECONDS = 0.25


class JudgeDied(Exception):
    """The judge's process has ended, or does not answer."""


class JudgeProcess(WorkerProcess):
    """The process that judges all cells of a run, on the device of rank 0."""

    module = "-m", "longca.lab.bench.workers.judge"

    def __init__(self, log: Path, stopped: Callable[[], bool], template: Template | None = None) -> None:
        """Starts it; it gets ready while workers do.

        Args:
            template: forks it, where it can.

        Raises:
            OSError: the log cannot be written, or the process not started.
        """
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self._channel = Channel(out_of_reach(reader), out_of_reach(writer))
        self._stopped = stopped
        self._door, door = socket.socketpair()
        self._workers: set[int] = set()
        self._is_closed = False
        options = {"reader": child_reader, "writer": child_writer, "door": door.fileno()}
        try:
            files = [child_reader, child_writer, door.fileno()]
            super().__init__(options, threads_per_rank(1), log, files, template=template)
        except BaseException:
            self._channel.close()
            self._door.close()
            raise
        finally:
            os.close(child_reader)
            os.close(child_writer)
            door.close()

    def meet(self, worker: int) -> socket.socket:
        """A socket for a worker, whose other end the judge has."""
        self._workers.add(worker)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._channel.send({"do": "meet", "worker": worker, "others": sorted(self._workers)})
                socket.send_fds(self._door, [b"m"], [theirs.fileno()])
            except (EOFError, OSError):
                ours.close()
                raise JudgeDied(self.cause_of_death()) from None
        return ours

    def forget(self, worker: int) -> None:
        """Its socket is closed when the next worker comes."""
        self._workers.discard(worker)

    def begin_cells(
        self, worker: int, cells: Sequence[Cell], measure: Measure, seed: int, device: tuple[str, int]
    ) -> None:
        """Name the cell that a worker is about to measure, or those of all players. Raises JudgeDied.

        Args:
            seed: of the run, for all that is drawn.
            device: type of rank 0's device, and its number on this machine.
        """
        self._ask(
            {
                "do": "begin",
                "worker": worker,
                "cells": [cell.model_dump(mode="json") for cell in cells],
                "measure": measure.model_dump(mode="json"),
                "seed": seed,
                "device": device,
            },
            "begun",
            START_SECONDS,
        )

    def verdicts(self, worker: int, timeout_s: float = VERDICT_SECONDS) -> list[Judgement]:
        """The verdict on each cell. Raises JudgeDied."""
        answer = self._ask({"do": "verdict", "worker": worker}, "verdicts", timeout_s)
        return [Judgement.model_validate(verdict) for verdict in answer]

    def close(self) -> None:
        """End it. A second call does nothing."""
        if self._is_closed:  # its descriptors may be others' by now
            return
        self._is_closed = True
        with suppress(EOFError):
            self._channel.send({"do": "exit"})
        self.kill()
        self.process.wait()
        self._channel.close()
        self._door.close()
        self.close_log()

    def _ask(self, request: Message, key: str, timeout_s: float) -> Message:
        deadline = time.monotonic() + timeout_s
        try:
            self._channel.send(request)
            while time.monotonic() < deadline:
                if self._stopped():
                    raise KeyboardInterrupt
                with suppress(TimeoutError):
                    return self._channel.wait(TICK_SECONDS)[key]
        except EOFError:
            raise JudgeDied(self.cause_of_death()) from None
        self.kill()
        raise JudgeDied(f"it has not answered in {timeout_s:.0f} s")


def main() -> None:
    """Judge until the runner ends it."""
    options = _options()
    obey_parent(options.parent)
    channel = Channel(options.reader, options.writer)
    door = socket.socket(fileno=options.door)
    gc.disable()
    from longca.lab.bench.judge.court import Court  # imports torch: seconds

    gc.freeze()
    gc.enable()
    court = Court(options.threads)
    workers: dict[int, socket.socket] = {}
    while True:
        sources: list[Any] = [channel, *workers.values()]
        ready, _, _ = select.select(sources, [], [])
        for number, worker in list(workers.items()):
            if worker in ready and not court.serve(worker):
                workers.pop(number).close()
        if channel in ready:
            try:
                messages = channel.receive()
            except EOFError:
                return
            for message in messages:
                if message["do"] == "exit":
                    return
                _obey(message, court, workers, door, channel)


def _obey(
    message: Message, court: Any, workers: dict[int, socket.socket], door: socket.socket, channel: Channel
) -> None:
    if message["do"] == "meet":
        _, [descriptor], _, _ = socket.recv_fds(door, 1, 1)
        for number in [number for number in workers if number not in message["others"]]:
            workers.pop(number).close()
        workers[message["worker"]] = socket.socket(fileno=descriptor)
        return
    if message["do"] == "verdict":  # all that the worker has sent is heard first
        worker = workers.get(message["worker"])
        while worker is not None and select.select([worker], [], [], 0)[0]:
            if not court.serve(worker):
                workers.pop(message["worker"]).close()
                break
    with suppress(EOFError):
        channel.send(getattr(court, message["do"])(message))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("reader", "writer", "door", "parent", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()
