"""The court: what the judge's process holds, which is the present cell, its judge, and references that the next cells may share."""

from __future__ import annotations

import gc
from socket import socket
from typing import Any

import torch

from longca.bench.check.inputs import DTYPES
from longca.bench.check.judge import Judge
from longca.bench.check.plan import CheckPlan, TimedResult
from longca.bench.judge.frames import receive_frame, send_frame
from longca.bench.judge.judgement import Judgement
from longca.bench.judge.referee import unpacked
from longca.bench.measure.environment import choose_device
from longca.bench.measure.failure import failure
from longca.bench.measure.latest import LatestMasks, LatestReferences, mask_facts
from longca.bench.measure.warm_math import warm_math
from longca.core.cell import Cell
from longca.core.record import Incorrect, Ok, Outcome
from longca.core.study import Measure
from longca.kernels.contract import Problem

Message = dict[str, Any]


class Court:
    """Judges one cell after the other."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        warm_math()
        self._masks, self._references = LatestMasks(), LatestReferences()
        self._request: Message = {}
        self._judge: Judge | None = None
        self._outcome: Outcome | None = None

    def begin(self, request: Message) -> Message:
        """Take a cell. Nothing is computed yet."""
        self._request, self._judge, self._outcome = request, None, None
        return {"begun": True}

    def verdict(self, _: Message) -> Message:
        """What was found about the cell, and an end of it."""
        judge, outcome = self._judge, self._outcome
        verdict = Judgement(outcome=outcome, accuracy=None if judge is None else judge.accuracy,
                          mask=None if judge is None else mask_facts(judge.plan.problem.mask),
                          is_complete=judge is not None and judge.is_complete)
        self._request, self._judge, self._outcome = {}, None, None
        self._free()
        return {"verdict": verdict.model_dump(mode="json")}

    def serve(self, worker: socket) -> bool:
        """Judge what a worker sends, and answer. False if it is gone, or sends what is no frame."""
        try:
            header, tensors = receive_frame(worker)
        except (EOFError, ValueError, KeyError, TypeError):
            return False
        try:
            reason = self._judged(header, tensors)
            self._outcome = Ok() if reason is None else Incorrect(reason=reason)
        except Exception as error:  # out of memory; or what a kernel has sent in the place of a result
            self._outcome = failure(error, "oracle")
            reason = "it could not be judged"
        self._free()
        try:
            send_frame(worker, {"reason": reason})
        except EOFError:
            return False
        return True

    def _judged(self, header: dict[str, Any], tensors: list[torch.Tensor]) -> str | None:
        if not self._request:
            raise ValueError("a result was sent, and no cell is measured")
        if header["do"] == "check":
            self._judge = Judge(plan := self._plan(), self._references.get(plan))
            tensors = [x.to(plan.problem.device) for x in tensors]
            return self._judge.check(unpacked(header["parts"], tensors), header["are_finite"], header["digests"])
        if self._judge is None or header["do"] != "check_timed":
            raise ValueError("timed calls are judged after the checked one")
        tensors = [x.to(self._judge.plan.problem.device) for x in tensors]
        timed = [TimedResult(int(call["call"]), unpacked(call["parts"], tensors), call["are_finite"]) for call in header["calls"]]
        return self._judge.check_timed(timed, header["digests"], int(header["last_call"]))

    def _plan(self) -> CheckPlan:
        cell, measure = (Cell.model_validate(self._request["cell"]), Measure.model_validate(self._request["measure"]))
        device = choose_device(*self._request["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        mask, _ = self._masks.get(cell)
        problem = Problem(mask, cell.num_q_heads, cell.num_kv_heads, cell.head_dim, DTYPES[cell.dtype], device,
                          needs_backward=cell.direction == "bwd")
        return CheckPlan(cell, problem, self._request["seed"], everything=measure.check == "all")

    def _free(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
