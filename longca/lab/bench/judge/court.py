"""The court: what the judge's process holds, which is the present cells, their judges, and references that
the next cells may share."""

from __future__ import annotations

import gc
from socket import socket
from typing import Any

import torch

from longca.kernels import Problem
from longca.lab.bench.check.inputs import DTYPES
from longca.lab.bench.check.judge import Judge
from longca.lab.bench.check.plan import CheckPlan, TimedResult
from longca.lab.bench.check.reference import Reference
from longca.lab.bench.judge.frames import receive_frame, send_frame
from longca.lab.bench.judge.judgement import Judgement
from longca.lab.bench.judge.referee import unpacked
from longca.lab.bench.measure.environment import choose_device
from longca.lab.bench.measure.failure import failure
from longca.lab.bench.measure.latest import LatestMasks, LatestReferences, mask_facts
from longca.lab.bench.measure.warm_math import warm_math
from longca.lab.studies import Cell, Measure
from longca.lab.studies.outcome import Incorrect, Ok, Outcome

Message = dict[str, Any]


class Court:
    """Judges one cell after the other, or all players of a play-off at a time, which share one problem."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        warm_math()
        self._masks = LatestMasks()
        self._references = LatestReferences()
        self._forget()

    def begin(self, request: Message) -> Message:
        """Take a cell, or the cells of all players. Nothing is computed yet."""
        self._forget()
        self._request = request
        return {"begun": True}

    def verdict(self, _: Message) -> Message:
        """The verdict about each cell; the cells are done then."""
        verdicts = [self._verdict(player) for player in range(len(self._request.get("cells", ())))]
        self._forget()
        self._free()
        return {"verdicts": [verdict.model_dump(mode="json") for verdict in verdicts]}

    def _forget(self) -> None:
        self._request: Message = {}
        self._judges: dict[int, Judge] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._shared: Reference | None = None

    def _verdict(self, player: int) -> Judgement:
        judge = self._judges.get(player)
        return Judgement(
            outcome=self._outcomes.get(player),
            accuracy=None if judge is None else judge.accuracy,
            mask=None if judge is None else mask_facts(judge.plan.problem.mask),
            is_complete=judge is not None and judge.is_complete,
        )

    def serve(self, worker: socket) -> bool:
        """Judge what a worker sends, and answer. False if it is gone, or sends what is no frame."""
        try:
            header, tensors = receive_frame(worker)
        except (EOFError, ValueError, KeyError, TypeError):
            return False
        player = header.get("player")
        if not isinstance(player, int):
            return False
        outcome: Outcome
        try:
            reason = self._judged(player, header, tensors)
            outcome = Ok() if reason is None else Incorrect(reason=reason)
        except Exception as error:  # out of memory; or what a kernel has sent in the place of a result
            outcome = failure(error, "oracle")
            reason = "it could not be judged"
        earlier = self._outcomes.get(player)
        if header.get("do") == "check" or earlier is None or earlier.status == "ok":
            self._outcomes[player] = outcome  # what comes after a wrong result mends nothing
        self._free()
        try:
            send_frame(worker, {"reason": reason})
        except EOFError:
            return False
        return True

    def _judged(self, player: int, header: dict[str, Any], tensors: list[torch.Tensor]) -> str | None:
        if not 0 <= player < len(self._request.get("cells", ())):
            raise ValueError("a result was sent, and no such cell is measured")
        if header["do"] == "check":
            plan = self._plan(player)
            self._judges[player] = judge = Judge(plan, self._reference(plan))
            tensors = [x.to(plan.problem.device) for x in tensors]
            return judge.check(unpacked(header["parts"], tensors), header["are_finite"], header["digests"])
        if player not in self._judges or header["do"] not in ("check_bits", "check_timed"):
            raise ValueError("other calls are judged after the checked one")
        judge = self._judges[player]
        if header["do"] == "check_bits":
            return judge.check_bits(header["runs"])
        tensors = [x.to(judge.plan.problem.device) for x in tensors]
        timed = [
            TimedResult(
                int(call["call"]),
                unpacked(call["parts"], tensors),
                call["are_finite"],
                bool(call["is_sample"]),
                int(call["drawn"]),
            )
            for call in header["calls"]
        ]
        return judge.check_timed(timed, header["digests"], int(header["last_call"]))

    def _reference(self, plan: CheckPlan) -> Reference | None:
        """The reference that this judge shares with others: players have one problem, and one copy of its
        inputs is enough."""
        if (kept := self._references.get(plan)) is not None or len(self._request["cells"]) == 1:
            return kept
        self._shared = self._shared or Reference(plan.problem, plan.inputs(), plan.scope)
        return self._shared

    def _plan(self, player: int) -> CheckPlan:
        cell = Cell.model_validate(self._request["cells"][player])
        measure = Measure.model_validate(self._request["measure"])
        device = choose_device(*self._request["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        mask, _ = self._masks.get(cell)
        problem = Problem(
            mask,
            cell.num_q_heads,
            cell.num_kv_heads,
            cell.head_dim,
            DTYPES[cell.dtype],
            device,
            needs_backward=cell.direction == "bwd",
        )
        return CheckPlan(cell, problem, self._request["seed"], everything=measure.check == "all")

    def _free(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
