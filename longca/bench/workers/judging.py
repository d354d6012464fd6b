"""The judge's process as the runner sees it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longca.bench.measure.environment import num_cores
from longca.bench.measure.verdict import Verdict
from longca.bench.workers.channel import Channel, Message
from longca.bench.workers.process import WorkerProcess
from longca.core.cell import Cell
from longca.core.study import Measure

START_SECONDS = 300.0  # importing torch from a cold network disk takes minutes
VERDICT_SECONDS = 60.0  # after the worker has had its answer there is little left to do
TICK_SECONDS = 0.25


class JudgeDied(Exception):
    """The judge's process has ended, or does not answer."""


class JudgeProcess(WorkerProcess):
    """The process that judges all cells of a run, on the device of rank 0."""

    module = "longca.bench.workers.judge"

    def __init__(self, log: Path, stopped: Callable[[], bool]) -> None:
        """Starts it; it gets ready while workers do.

        Raises:
            OSError: the log cannot be written, or the process not started.
        """
        child_reader, writer = os.pipe()
        reader, child_writer = os.pipe()
        self._channel, self._stopped = Channel(reader, writer), stopped
        self._door, door = socket.socketpair()
        self._workers: set[int] = set()
        options = {"reader": child_reader, "writer": child_writer, "door": door.fileno()}
        try:
            super().__init__(options, num_cores(), log, [child_reader, child_writer, door.fileno()])
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

    def begin(self, worker: int, cell: Cell, measure: Measure, seed: int, device: tuple[str, int]) -> None:
        """Name the cell that a worker is about to measure. Raises JudgeDied.

        Args:
            seed: of the run, for all that is drawn.
            device: type of rank 0's device, and its number on this machine.
        """
        self._ask({"do": "begin", "worker": worker, "cell": cell.model_dump(mode="json"),
                   "measure": measure.model_dump(mode="json"), "seed": seed, "device": device}, "begun", START_SECONDS)

    def verdict(self, worker: int, timeout_s: float = VERDICT_SECONDS) -> Verdict:
        """The verdict on the cell. Raises JudgeDied."""
        return Verdict.model_validate(self._ask({"do": "verdict", "worker": worker}, "verdict", timeout_s))

    def close(self) -> None:
        """End it. A second call does nothing."""
        with suppress(EOFError, OSError):
            self._channel.send({"do": "exit"})
        self.kill()
        self.process.wait()
        with suppress(OSError):
            self._channel.close()
        self._door.close()

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
