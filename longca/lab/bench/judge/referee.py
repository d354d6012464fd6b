"""The judge as a worker sees it: in another process, at the other end of a socket."""

from __future__ import annotations

from socket import socket
from typing import Any

import torch

from longca.lab.bench.check.judge import Digests
from longca.lab.bench.check.oracle import PartResult
from longca.lab.bench.check.plan import TimedResult
from longca.lab.bench.judge.frames import receive_frame, send_frame
from longca.lab.studies import Accuracy


class JudgeLost(Exception):
    """The judge has ended."""


class RemoteReferee:
    """Sends what is judged of one cell. The verdict goes from the judge to the runner; here is only what the
    next step needs."""

    accuracy: Accuracy | None = None

    def __init__(self, connection: socket, player: int = 0) -> None:
        """
        Args:
            player: number of the cell among those that the judge has begun.
        """
        self._connection = connection
        self._player = player

    def check(self, results: list[PartResult], are_finite: dict[str, bool], digests: Digests) -> str | None:
        parts, tensors = packed(results)
        return self._ask(
            {"do": "check", "parts": parts, "are_finite": are_finite, "digests": digests}, tensors
        )

    def check_bits(self, runs: list[Digests]) -> str | None:
        return self._ask({"do": "check_bits", "runs": runs}, [])

    def check_timed(self, timed: list[TimedResult], digests: Digests, last_call: int) -> str | None:
        calls: list[dict[str, Any]] = []
        tensors: list[torch.Tensor] = []
        for result in timed:
            parts, of_call = packed(result.parts)
            calls.append(
                {
                    "call": result.call,
                    "parts": parts,
                    "are_finite": result.are_finite,
                    "is_sample": result.is_sample,
                    "drawn": result.drawn,
                }
            )
            tensors += of_call
        return self._ask(
            {"do": "check_timed", "calls": calls, "digests": digests, "last_call": last_call}, tensors
        )

    def _ask(self, header: dict[str, Any], tensors: list[torch.Tensor]) -> str | None:
        try:
            send_frame(self._connection, {**header, "player": self._player}, tensors)
            answer, _ = receive_frame(self._connection)
        except EOFError:
            raise JudgeLost("the process that judges results has ended") from None
        return answer["reason"]


def packed(results: list[PartResult]) -> tuple[list[list[str]], list[torch.Tensor]]:
    """(names of the tensors of each part, all tensors in this order)."""
    return [list(part) for part in results], [x for part in results for x in part.values()]


def unpacked(names: list[list[str]], tensors: list[torch.Tensor]) -> list[PartResult]:
    """The inverse of `packed`; takes the tensors from the front of the list."""
    return [{name: tensors.pop(0) for name in part} for part in names]
