"""The session of a worker process: it holds one device and measures one cell after another on it."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longca.core import UserError
from longca.lab.bench.judge.referee import RemoteReferee
from longca.lab.bench.measure.environment import choose_device, device_name, device_uuid, gpu_system, software
from longca.lab.bench.measure.failure import as_failed, failure
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences
from longca.lab.bench.measure.others import watch
from longca.lab.bench.measure.result import FAILURES, Result
from longca.lab.bench.measure.timing.originals import Originals
from longca.lab.bench.measure.warm_math import warm_math
from longca.lab.bench.workers.channel import Message
from longca.lab.bench.workers.device_lock import DeviceLock
from longca.lab.bench.workers.launch import RankPlacement
from longca.lab.environment import EnvironmentTaker, SystemFacts
from longca.lab.studies import Cell, Measure
from longca.lab.studies.playoff.rules import PlayoffRules

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm

PING_SIZE = 64
COMM_SECONDS = 86400.0  # never: the runner ends what hangs, with the cell's own timeout


class Session:
    """One rank: its device, its communicator and its latest masks."""

    def __init__(
        self,
        placement: RankPlacement,
        device: str,
        num_threads: int,
        listener: int | None = None,
        judge: int | None = None,
    ) -> None:
        """It finds its device, and does not use it yet.

        Args:
            device: "cpu", "cuda", or "auto" for a GPU where there is one.
            listener: for rank 0: file descriptor of the socket that listens at the rendezvous URL of the
                ranks.
            judge: for rank 0: file descriptor of the socket to the judge; without it cells are judged in this
                process.

        Raises:
            NoDevice: there is no GPU for this rank.
        """
        torch.set_num_threads(num_threads)
        warm_math()
        self.device = choose_device(device, placement.local_rank)
        self.lock = DeviceLock(device_uuid(self.device) or "cpu")
        self.placement = placement
        self._listener = listener
        self._judge = None if judge is None else socket.socket(fileno=judge)
        self.masks = LatestMasks()
        self.references = LatestReferences()
        self.comm: Comm | None = None
        self._taker: EnvironmentTaker | None = None
        self._originals = Originals()
        gc.freeze()  # imported objects stay anyway; to scan them would cost 0.2 s each time memory is freed

    def claim(self, request: Message) -> Message:
        """Take the lock of the device, or find out if it is still held. Its holder if another run has it, an
        error if there can be none."""
        try:
            return {"device": self.lock.title, "holder": self.lock.claim(request["signature"])}
        except UserError as error:
            return {"error": error.args}

    def release(self, _: Message) -> Message:
        """Give the lock back: another rank of the group has not got its own."""
        self.lock.release()
        return {"released": self.lock.title}

    def open(self, _: Message) -> Message:
        """Begin to use the device, whose lock is held, and meet the other ranks. Facts of the device for the
        runner."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.placement.world > 1:
            self.comm = self._join()
        with suppress(
            Exception
        ):  # of whatever is installed in odd ways: measuring goes on without a listing of it
            self._taker = _taker(self.device)
        num_devices = torch.cuda.device_count() if self.device.type == "cuda" else 1
        return {
            "ready": {
                "type": self.device.type,
                "name": device_name(self.device),
                "num_devices": num_devices,
                "uuid": device_uuid(self.device),
            }
        }

    def measure(self, request: Message, answer: Callable[[Message], object]) -> None:
        """Measure the cell of a request and answer. Its memory is free again afterwards.

        A failure is reported before memory is freed: that may have to wait for a GPU which itself waits for a
        rank that is gone.
        """
        cell = Cell.model_validate(request["cell"])
        measure = Measure.model_validate(request["measure"])
        with watch(self.device, request.get("judge")) as uses:
            result = self._unless_replaced(self._measure(cell, measure, request.get("seed", 0)))
        message = {
            "result": result.model_dump(mode="json"),
            "uses": uses,
            **self._environment(request.get("listed", ())),
        }
        if result.outcome.status in FAILURES:
            answer(message)
            self._free()
        else:
            self._free()
            answer(message)

    def play(self, request: Message) -> Message:
        """Play off the cells of a request: the result of each player, or the one that has left the device
        unusable."""
        from longca.lab.bench.playoff.measuring import DeviceLost, PlayoffSetup, measure_playoff

        cells = [Cell.model_validate(cell) for cell in request["cells"]]
        measure = Measure.model_validate(request["measure"])
        judge = self._judge
        rules = PlayoffRules.model_validate(request["rules"])
        with Path(request["at_work"]).open("w") as file, watch(self.device, request.get("judge")) as uses:
            setup = PlayoffSetup(
                self.device,
                measure,
                rules,
                request["seed"],
                self.masks,
                self.references,
                lambda player: os.pwrite(file.fileno(), f"{player:<4}".encode(), 0),
                None if judge is None else lambda player: RemoteReferee(judge, player),
            )
            try:
                players = measure_playoff(cells, setup)
            except DeviceLost as lost:
                return {"lost": lost.player, "result": Result(outcome=lost.outcome).model_dump(mode="json")}
        self._free()
        return {
            "players": [player.model_dump(mode="json") for player in players],
            "uses": uses,
            **self._environment(request.get("listed", ())),
        }

    def wrong_rows(self, request: Message) -> Message:
        """The first wrong row of each tensor of a kernel cell; none where that fails."""
        from longca.lab.bench.measure.wrong_rows import find_wrong_rows

        cell = Cell.model_validate(request["cell"])
        measure = Measure.model_validate(request["measure"])
        try:
            rows = find_wrong_rows(
                cell, measure, self.device, self.masks, self.references, request.get("seed", 0)
            )
        except Exception:  # a kernel that once gave a wrong result may as well raise; the verdict stands
            rows = []
        self._free()
        return {"wrong_rows": [row.model_dump(mode="json") for row in rows]}

    def ping(self, _: Message) -> Message:
        """Check that the device still computes and that the other ranks still answer."""
        try:
            if self.comm is not None:
                self.comm.barrier()
            ones = torch.ones(PING_SIZE, PING_SIZE, device=self.device)
            total = (ones @ ones).sum().item()
        except Exception as error:  # whatever a sick device raises
            return {"healthy": False, "reason": f"{type(error).__name__}: {error}"}
        return {"healthy": total == PING_SIZE**3}

    def close(self) -> None:
        if self.comm is not None:
            self.comm.close()

    def _measure(self, cell: Cell, measure: Measure, seed: int) -> Result:
        referee = None if self._judge is None else RemoteReferee(self._judge)
        try:
            if cell.kind == "kernel":
                return measure_kernel(
                    cell,
                    measure,
                    self.device,
                    self.masks,
                    self.references,
                    seed=seed,
                    referee=None if referee is None else lambda plan: referee,
                )
            from longca.lab.bench.measure.cp import measure_cp

            self.comm = self.comm or self._join()
            return measure_cp(
                cell,
                measure,
                self.device,
                self.comm,
                seed=seed,
                referee=None if referee is None else lambda plan: referee,
            )
        except Exception as error:  # both turn errors of a cell into outcomes; this is for what they miss
            return Result(outcome=failure(error, "measuring"))

    def _unless_replaced(self, result: Result) -> Result:
        """The result; a failure where a plug-in has replaced a function that it was measured with."""
        name = self._originals.replaced() if result.outcome.status == "ok" else None
        if name is None:
            return result
        outcome = as_failed("Replaced", f"it replaces {name}, with which it is measured")
        return result.model_copy(update={"outcome": outcome, "samples": None, "memory": None})

    def _environment(self, listed: Collection[str]) -> Message:
        """The environment of this rank, with those of its listings that were not sent before; empty where it
        cannot be taken.

        Args:
            listed: digests of the listings that were.
        """
        try:
            if self._taker is None:
                return {}
            environment, listings = self._taker.take()
        except (
            Exception
        ):  # of whatever is installed in odd ways: a number without a listing says that it has none
            return {}
        return {
            "environment": environment.model_dump(mode="json"),
            "listings": {digest: content for digest, content in listings.items() if digest not in listed},
        }

    def _join(self) -> Comm:
        from longca.cp.comm.backend import Comm

        placement = self.placement
        return Comm(
            placement.rank,
            placement.world,
            self.device.index or 0,
            placement.rendezvous,
            self.device.type,
            COMM_SECONDS,
            self._listener,
        )

    def _free(self) -> None:
        compiler: Any = sys.modules.get("torch._dynamo")
        if compiler is not None:
            # compiled graphs hold memory, and after a few of one function torch stops compiling it
            compiler.reset()
        gc.collect()
        # objects that kernels import and keep: to scan them four times a cell costs half a second
        gc.freeze()
        if self.device.type == "cuda":
            with suppress(RuntimeError):  # a sick device: the runner's ping finds out
                torch.cuda.empty_cache()


def _taker(device: torch.device) -> EnvironmentTaker:
    """Takes the environment of this process; what is installed is listed at once."""
    used = software()
    driver, firmware = gpu_system(device)
    taker = EnvironmentTaker(SystemFacts(driver, firmware, used.container, used.lock))
    taker.take()
    return taker
